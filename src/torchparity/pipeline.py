"""The jobs people come for, each as one readable function."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torchparity.compare.judgement import Tolerance
from torchparity.diagnosis.blame import blame as blame_case
from torchparity.diagnosis.locate import locate as locate_case
from torchparity.diagnosis.passes import as_graph, check_passes_of_inductor, check_user_passes
from torchparity.diagnosis.whole import blame_whole
from torchparity.errors import AccuracyError, CaseError, NoFailingGraph, TargetError, UsageError
from torchparity.execute import reasons
from torchparity.execute.ground import CANDIDATE_RUNS, NOISE_RUNS, Settings
from torchparity.execute.isolated import run_bundle
from torchparity.execute.oracle import Oracle
from torchparity.execute.outcome import Limits
from torchparity.execute.pool import Pool
from torchparity.execute.ranks import Ranks, in_step
from torchparity.execute.wire import pack, verdict_from
from torchparity.minifier.chase import Budget, Listener
from torchparity.minifier.driver import SECONDS as QUERY_SECONDS
from torchparity.minifier.driver import Job, Minified, continue_minify, start_minify
from torchparity.observe.agreement import compare_graphs
from torchparity.observe.capture import AOT, DYNAMO, Recorder
from torchparity.observe.program import traced_program
from torchparity.observe.story import tell_story, with_calls
from torchparity.records import (
    Blame,
    JointVerdict,
    Kind,
    Located,
    PassesReport,
    ProgressCallback,
    Status,
    Story,
    Verdict,
)
from torchparity.report.issue import write_issue
from torchparity.report.terminal import plain_text
from torchparity.repro.bundle import write_bundle
from torchparity.repro.case import Case
from torchparity.run.loss import Loss
from torchparity.run.recipe import Recipe
from torchparity.run.step import OptimizerFactory, Runner
from torchparity.run.subject import Subject, owned_modules
from torchparity.run.wishes import ignored_kinds, plan_for


def check(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    fresh_cache: bool = False,
    train: bool = False,
    backward: bool | None = None,
    steps: int | None = None,
    optimizer: OptimizerFactory | str | None = None,
    autocast: torch.dtype | str | None = None,
    loss: Loss | None = None,
    input_sets: Sequence[Any] = (),
    input_gradients: bool | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    ignore: Iterable[str | Kind] = (),
    reference: bool = True,
    noise_runs: int = NOISE_RUNS,
    candidate_runs: int = CANDIDATE_RUNS,
    progress: ProgressCallback | None = None,
    ranks: Ranks | None = None,
) -> Verdict:
    """Say whether the compiled model computes what the model computes.

    By default: eval mode, forward only. `train` is train mode with a backward pass, `backward`
    alone a backward pass in eval mode, `optimizer` and `steps` add optimizer steps. The model, its
    inputs, its gradients and all random generators are left as they were found. `ranks` are those that check
    the same model at the same time: they run it equally often, and their graphs must be the same.
    """
    subject = subject_of(model, args, kwargs, input_sets)
    recipe = Recipe(
        backend=backend,
        mode=mode,
        dynamic=subject.dynamic if dynamic is None else dynamic,
        fullgraph=fullgraph,
        options=dict(options or {}),
        config=dict(config or {}),
        fresh_cache=fresh_cache,
    ).validated()
    plan = plan_for(
        subject,
        train=train,
        backward=backward,
        steps=steps,
        optimizer=optimizer,
        autocast=autocast,
        loss=loss,
        input_gradients=input_gradients,
        seed=seed,
    )
    if noise_runs < 2 or candidate_runs < 1:
        raise UsageError(
            f"{noise_runs} noise runs and {candidate_runs} candidate runs are too few to judge by",
            hint="use at least 2 noise runs and 1 candidate run",
        )
    if tolerance is not None and not tolerance > 0:
        raise UsageError(
            f"a tolerance of {tolerance} allows nothing",
            hint="give a positive number, or leave it out to be judged by the model's own noise",
        )
    settings = Settings(
        tolerance=Tolerance(relative=tolerance, ignore=ignored_kinds(ignore)),
        noise_runs=noise_runs,
        candidate_runs=candidate_runs,
        reference=reference,
        progress=progress,
    )
    if ranks is not None:
        settings = in_step(settings, ranks)
        difference = compare_graphs(subject, plan, recipe, ranks)
        if difference is not None:
            return Verdict(
                status=Status.DIFFERS,
                reasons=(reasons.graphs_differ(difference),),
                recipe=recipe.facts(),
                subject=subject.title(),
            )
    return Oracle(subject, plan, recipe, settings).judge()


def check_together(subject: Subject, ranks: Ranks, **options: Any) -> JointVerdict:
    """Check one model on all ranks at once; return, on each of them, what all of them found.

    Where only gradients differ, which ranks average, they are checked once more as each rank has them before
    (for DistributedDataParallel).
    """

    def judge() -> tuple[Verdict, ...]:
        found = ranks.together("verdict", lambda: pack(check(subject, ranks=ranks, **options)))
        return tuple(verdict_from(entry) for entry in found)

    joint = JointVerdict(verdicts=judge())
    if joint.status is not Status.DIFFERS or joint.guilty or not averaging(subject.model):
        return joint
    with contextlib.ExitStack() as stack:
        for module in averaging(subject.model):
            stack.enter_context(module.no_sync())
        return replace(joint, unaveraged=judge())


def averaging(model: Callable[..., Any]) -> list[DistributedDataParallel]:
    """Return the modules of a model that average their gradients over the ranks, and can leave it."""
    modules = [module for root in owned_modules(model).values() for module in root.modules()]
    return [module for module in modules if isinstance(module, DistributedDataParallel)]


def assert_parity(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Verdict:
    """Raise AccuracyError, with the table, unless `check` says SAME; return the verdict."""
    verdict = check(model, args, kwargs, **options)
    if verdict.status is not Status.SAME:
        raise AccuracyError(
            plain_text(verdict),
            hint="`verdict.leaves` of this exception holds every number",
            verdict=verdict,
        )
    return verdict


class CaptureWarning(UserWarning):
    """A graph that was seen and could not be written down."""


def capture(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str | Callable[..., Any] = "inductor",
    dynamic: bool | None = None,
    config: Mapping[str, Any] | None = None,
    train: bool = False,
    backward: bool | None = None,
    steps: int | None = None,
    optimizer: OptimizerFactory | str | None = None,
    autocast: torch.dtype | str | None = None,
    loss: Loss | None = None,
    input_sets: Sequence[Any] = (),
    seed: int = 0,
    calls: int = 1,
    out: str | Path | None = None,
) -> list[Case]:
    """Run a model once, compiled, and return every graph of it as a case; with `out`, write the bundles as well.

    The graphs are run eagerly, so that capturing is safe whatever the backend does with them. `calls` is how many
    calls of each graph are kept. A graph that cannot be written down exactly is a CaptureWarning.
    """
    if calls < 1:
        raise UsageError(f"{calls} calls leave nothing to capture", hint="keep at least the first call of each graph")
    subject = subject_of(model, args, kwargs, input_sets)
    dynamic = subject.dynamic if dynamic is None else dynamic
    recipe = Recipe(backend=backend, dynamic=dynamic, config=dict(config or {})).validated()
    plan = plan_for(
        subject,
        train=train,
        backward=backward,
        steps=steps,
        optimizer=optimizer,
        autocast=autocast,
        loss=loss,
        input_gradients=None,
        seed=seed,
    )
    recorder = Recorder(recipe, out=Path(out) if out is not None else None, calls=calls)
    watching = replace(recipe.with_eager_random(), backend=recorder)
    runner = Runner(subject, plan)
    try:
        with torch.enable_grad(), watching.active():
            ending = runner.run(watching.build(subject.model), lambda leaf: None)
    finally:
        watching.release()
        runner.release()
    for refusal in recorder.refusals:
        warnings.warn(f"{refusal.name}: {refusal.reason} ({refusal.hint})", CaptureWarning, stacklevel=2)
    if ending.failure is not None and not recorder.cases:
        raise TargetError(
            f"the model could not be captured: {ending.failure.type}: {ending.failure.message}",
            hint="see whether it runs without torch.compile, and with backend='eager'",
        )
    if ending.failure is not None:
        told = f"the run ended early: {ending.failure.type}: {ending.failure.message}"
        warnings.warn(f"{told} (graphs after that were not seen)", CaptureWarning, stacklevel=2)
    return recorder.cases


def explain(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    fresh_cache: bool = False,
    train: bool = False,
    backward: bool | None = None,
    autocast: torch.dtype | str | None = None,
    loss: Loss | None = None,
    input_sets: Sequence[Any] = (),
    calls: int = 2,
    batches: Sequence[int] = (),
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Story:
    """Compile a model, call it, and tell what the compiler did: frames, graph breaks, subgraphs, guards, recompiles.

    The model is called `calls` times with each of its inputs, then with the first of them cut or repeated to each of
    `batches` rows: what does not fit the guards shows as a recompile. An exception of the model or of the compiler is
    the end of the story, not an error.
    """
    for word, number in [("calls", calls), *(("rows", batch) for batch in batches)]:
        if number < 1:
            raise UsageError(f"{number} {word} leave nothing to tell", hint="give 1 or more")
    subject = subject_of(model, args, kwargs, input_sets)
    recipe = Recipe(
        backend=backend,
        mode=mode,
        dynamic=subject.dynamic if dynamic is None else dynamic,
        fullgraph=fullgraph,
        options=dict(options or {}),
        config=dict(config or {}),
        fresh_cache=fresh_cache,
    ).validated()
    plan = plan_for(
        subject,
        train=train,
        backward=backward,
        steps=None,
        optimizer=None,
        autocast=autocast,
        loss=loss,
        input_gradients=None,
        seed=seed,
    )
    subject = with_calls(subject, times=calls, batches=tuple(batches))
    return tell_story(subject, replace(plan, optimizer=None), recipe, progress=progress)


def check_passes(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    passes: Sequence[Callable[[torch.fx.GraphModule], Any]] | None = None,
    iterations: int = 1,
    optimizer: OptimizerFactory | str | None = None,
    train: bool = False,
    backward: bool | None = None,
    loss: Loss | None = None,
    dynamic: bool | None = None,
    seed: int = 0,
) -> PassesReport:
    """Judge the numbers before and after every pass of inductor, or after each of `passes`, functions on a graph.

    Passes of one's own are judged by outputs, gradients and, after `iterations` steps of an optimizer, parameters;
    `backward` is on wherever something can be differentiated. A pass of inductor is judged on the graph it changes.
    """
    subject = subject_of(model, args, kwargs, ())
    if iterations < 1:
        raise UsageError(f"{iterations} iterations leave nothing to compare", hint="give 1 or more")
    learns = isinstance(subject.model, torch.nn.Module) and any(
        parameter.requires_grad for parameter in subject.model.parameters()
    )
    wants = backward if backward is not None else train or (passes is not None and learns)
    plan = plan_for(
        subject,
        train=train,
        backward=wants,
        steps=iterations if learns and wants else None,
        optimizer=optimizer,
        autocast=None,
        loss=loss,
        input_gradients=None,
        seed=seed,
    )
    if passes is None:
        return check_passes_of_inductor(subject, plan, dynamic=dynamic)
    return check_user_passes(as_graph(subject.model), subject, plan, passes)


def find_failing(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str | Callable[..., Any] = "inductor",
    dynamic: bool | None = None,
    train: bool = False,
    backward: bool | None = None,
    autocast: torch.dtype | str | None = None,
    seed: int = 0,
    pool: Pool | None = None,
    limits: Limits | None = None,
) -> tuple[Case, Verdict]:
    """Capture a model; return the first of its graphs that fails, judged in workers, and how; refuse where none does.

    Graphs are asked as Dynamo leaves them first: what a decomposition does wrong is already in the graphs after
    AOTAutograd, where eager and compiled agree again. Then the model's own calls of torch: what Dynamo does wrong is
    already in its graphs.
    """
    subject = subject_of(model, args, kwargs, ())
    how: dict[str, Any] = {"dynamic": dynamic, "train": train, "backward": backward, "autocast": autocast, "seed": seed}
    asked = 0
    with (
        tempfile.TemporaryDirectory(prefix="torchparity-") as name,
        contextlib.nullcontext(pool) if pool is not None else Pool(workers=1) as workers,
    ):
        for case in candidates(subject, backend, Path(name), **how):
            asked += 1
            verdict = run_bundle(Path(name) / case.name, pool=workers, limits=limits)
            if verdict.status is Status.DIFFERS:
                return case, verdict
    raise NoFailingGraph(
        f"no graph of {subject.title()} fails by itself ({asked} were judged)",
        hint="`torchparity check` judges the model as a whole",
    )


def locate(
    what: Case | Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    pool: Pool | None = None,
    limits: Limits | None = None,
    listen: Callable[[str], None] | None = None,
    **how: Any,
) -> Located:
    """Return which operation introduces the error of a case, or of the first graph of a model that fails.

    `how` is what `find_failing` takes besides: `backend`, `train`, `backward`, `autocast`, `dynamic`, `seed`.
    """
    case = what if isinstance(what, Case) else find_failing(what, args, kwargs, pool=pool, limits=limits, **how)[0]
    return locate_case(case, pool=pool, limits=limits, listen=listen)


def blame(
    what: Case | Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    pool: Pool | None = None,
    limits: Limits | None = None,
    listen: Callable[[str], None] | None = None,
    **how: Any,
) -> Blame:
    """Return which stage of the compiler the failure of a case, or of a model, comes from; `how` is as for `locate`.

    Where each graph of a model agrees alone and the model differs all the same, what lies between is looked for.
    """
    if isinstance(what, Case):
        return blame_case(what, pool=pool, limits=limits, listen=listen)
    subject = subject_of(what, args, kwargs, ())
    try:
        case, _ = find_failing(subject, pool=pool, limits=limits, **how)
    except NoFailingGraph:
        plan = plan_for(
            subject,
            train=how.get("train", False),
            backward=how.get("backward"),
            steps=None,
            optimizer=None,
            autocast=how.get("autocast"),
            loss=None,
            input_gradients=None,
            seed=how.get("seed", 0),
        )
        recipe = Recipe(backend=how.get("backend", "inductor"), dynamic=how.get("dynamic"))
        return blame_whole(subject, plan, recipe, listen=listen)
    return blame_case(case, pool=pool, limits=limits, listen=listen)


def candidates(subject: Subject, backend: str | Callable[..., Any], folder: Path, **how: Any) -> Iterator[Case]:
    """Yield the cases that may show what is wrong with a model, each as a bundle in a folder."""
    try:
        cases = capture(subject, backend=backend, out=folder, **how)
    except TargetError:
        cases = []  # Dynamo itself may be what fails.
    yield from (case for case in cases if case.level == DYNAMO)
    try:
        program = capture_program(subject, backend=backend, **how)
    except CaseError:
        program = None
    if program is not None:
        write_bundle(program, folder / program.name)
        yield program
    yield from (case for case in cases if case.level == AOT)


def capture_program(
    subject: Subject,
    *,
    backend: str | Callable[..., Any],
    dynamic: bool | None,
    train: bool,
    backward: bool | None,
    autocast: torch.dtype | str | None,
    seed: int,
) -> Case | None:
    """Run a model once, eagerly, and return its own calls of torch as a case; None where eager itself fails."""
    plan = plan_for(
        subject,
        train=train,
        backward=backward,
        steps=None,
        optimizer=None,
        autocast=autocast,
        loss=None,
        input_gradients=None,
        seed=seed,
    )
    recipe = Recipe(backend=backend, dynamic=subject.dynamic if dynamic is None else dynamic)
    kept: list[Case] = []
    runner = Runner(subject, replace(plan, optimizer=None))
    try:
        runner.run(traced_program(subject.model, recipe, backward=plan.backward, keep=kept), lambda leaf: None)
    finally:
        runner.release()
    return kept[0] if kept else None


def minify(
    case: Case,
    *,
    out: str | Path | None = None,
    check: str | None = None,
    budget: float | None = None,
    queries: int | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    listen: Listener | None = None,
    pool: Pool | None = None,
    verdict: Verdict | None = None,
) -> Minified:
    """Return the smallest case found that fails as this one does: verified, with its script and its log.

    Each question runs in a process of its own. The failure is pinned at the start: another kind of failure met on the
    way is kept, and not followed. With `out`, everything is written there as it is found: the smallest case so far,
    the log that `resume_minify` goes on from, at the end the script and an issue to paste. `check` is a command that
    decides instead of the oracle: `{}` in it is the folder of a bundle, exit code 0 is interesting, 1 is not, anything
    else unknown. `budget` is in seconds. `pool` and `verdict` are workers and an answer that are there already.
    """
    job = Job(check=check, limits=limits or Limits(seconds=QUERY_SECONDS), pool=pool, verdict=verdict)
    small = start_minify(
        case,
        job,
        out=Path(out) if out is not None else None,
        budget=Budget(seconds=budget, queries=queries),
        workers=workers,
        listen=listen,
    )
    if out is not None:
        leave_issue(small, Path(out))
    return small


def resume_minify(
    folder: str | Path,
    *,
    budget: float | None = None,
    queries: int | None = None,
    workers: int | None = None,
    listen: Listener | None = None,
) -> Minified:
    """Go on with a minification that was stopped; no query that was answered is asked again."""
    small = continue_minify(
        Path(folder), budget=Budget(seconds=budget, queries=queries), workers=workers, listen=listen
    )
    leave_issue(small, Path(folder))
    return small


def leave_issue(small: Minified, folder: Path) -> None:
    """Write `issue.md` beside a script that was verified."""
    if not small.script_output:
        return
    before = small.started_from
    found = (
        f"Found in a graph of {before['operations']} operations and made small by torchparity "
        f"{small.environment.get('torchparity', '')} ({small.queries} queries)."
    )
    kind = str((small.signature or {}).get("kind", ""))
    text = write_issue(
        title=small.title or f"{small.recipe.backend_name()} differs from eager in {kind}",
        script=small.script,
        output=small.script_output,
        reproduced=small.reproduced,
        environment=small.environment,
        found=found,
    )
    (folder / "issue.md").write_text(text, encoding="utf-8")


def subject_of(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    input_sets: Sequence[Any],
) -> Subject:
    """Return the subject that the arguments of a job make, or the one that was given."""
    subject = model if isinstance(model, Subject) else Subject(model, args, dict(kwargs or {}))
    return replace(subject, input_sets=tuple(input_sets)) if input_sets else subject
