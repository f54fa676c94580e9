"""Which graph of a model fails by itself, and how: found in one compilation where the check has kept the graphs.

A model that is named is loaded, checked and captured in workers. One that is an object lives here, and only runs
eagerly here, unless its whole check was asked for here too.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from torchparity.compilers.candidates import Compiled
from torchparity.errors import CaseError, NoFailingGraph, ParityError, TargetError
from torchparity.judge.asking import oracle_for
from torchparity.judge.isolated import run_in
from torchparity.judge.script import write_bundle
from torchparity.observe.capture import AOT, DYNAMO
from torchparity.observe.keeping import Keeper
from torchparity.records import Progress, ProgressCallback, Severity, Status, Verdict, signature_of
from torchparity.repro.bundle import read_bundle
from torchparity.repro.case import Case
from torchparity.request import Options, Request, request_for
from torchparity.run.plan import settled
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.apart import Examined, captured_apart, examined_apart
from torchparity.verbs.asking import ONE_GRAPH, subject_of, using
from torchparity.verbs.capture import captured, captured_program
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool


@dataclass(frozen=True, kw_only=True)
class Failing:
    """A graph that fails by itself: its bundle, and how."""

    folder: Path
    verdict: Verdict

    @functools.cached_property
    def case(self) -> Case:
        """The case in the bundle."""
        return read_bundle(self.folder)


def examine(
    subject: Subject,
    request: Request,
    folder: Path,
    *,
    progress: ProgressCallback | None = None,
    keep: Callable[[Verdict], None] | None = None,
    ahead: Path | None = None,
) -> Examined:
    """Check a model in this process; where it differs, judge the graphs that the check has compiled, and no other.

    In a folder `ahead` of all that, graphs are written down before they are compiled; `progress` hears of each.
    """
    request = settled(request, subject)
    latest = Latest(progress)
    keeper = Keeper(request, ahead=None if ahead is None else lambda kept: latest.written(kept.ahead(request, ahead)))
    oracle = oracle_for(subject, request, progress=latest if progress is not None else None)
    with keeper.active():
        verdict = oracle.judge()
    if keep is not None:
        keep(verdict)
    used = oracle.candidate
    if verdict.status is not Status.DIFFERS or not isinstance(used, Compiled):
        return Examined(verdict=verdict)
    notes, agree = list(keeper.notes), 0
    if oracle.ground.runner.lost:
        return Examined(verdict=verdict, notes=(*notes, "its graphs are judged in processes whose device works"))
    if oracle.recorded:  # What was recorded went with the check: nobody can run these graphs again.
        return Examined(verdict=verdict, notes=tuple(notes))
    for kept in keeper.graphs:
        try:
            found = kept.judge(request, used.recipe, progress=progress)
            if raises_alone(found, verdict):
                notes.append(f"{kept.name}: {found.reasons[0]}, which the model as a whole does not")
            elif is_another(found, verdict):
                notes.append(f"{kept.name}: {found.reasons[0]}, while the model as a whole is wrong")
            elif found.status is Status.DIFFERS:
                case = replace(kept.case(request), signature=signature_of(None, found))
                write_bundle(case, folder / kept.name)
                return Examined(verdict=verdict, failing=kept.name, how=found, graphs=agree, notes=tuple(notes))
            agree += found.status is Status.SAME
        except ParityError as error:
            notes.append(f"{kept.name}: {error.message} ({error.hint})")
    everyone = agree == len(keeper.graphs) and not notes
    return Examined(verdict=verdict, graphs=agree if everyone else 0, notes=tuple(notes))


class Latest:
    """Hands on what is heard of the runs, and tells of graphs in the midst of one."""

    def __init__(self, progress: ProgressCallback | None) -> None:
        self.progress = progress
        self.event: Progress | None = None

    def __call__(self, event: Progress) -> None:
        """Hand it on."""
        self.event = event
        if self.progress is not None:
            self.progress(event)

    def written(self, bundle: Path | None) -> None:
        """Tell that a graph was written down; which run it is stays what is known of the process."""
        if self.progress is not None and self.event is not None and bundle is not None:
            self.progress(replace(self.event, bundle=str(bundle)))


def raises_alone(graph: Verdict, whole: Verdict) -> bool:
    """Tell whether a graph fails to run where the model that it comes from runs."""
    return graph.status is Status.DIFFERS and graph.failure is not None and whole.failure is None


def is_another(graph: Verdict, whole: Verdict) -> bool:
    """Tell whether a graph differs in its layout alone where the model that it comes from is wrong, or fails."""
    layout = graph.status is Status.DIFFERS and graph.severity is Severity.LAYOUT
    return layout and whole.severity.rank > Severity.LAYOUT.rank


def candidates(subject: Subject, request: Request, folder: Path) -> tuple[list[str], list[str]]:
    """Write every case that may show what is wrong with a model; return their names, the likeliest first, and notes.

    Graphs as Dynamo leaves them come first: what a decomposition does wrong is already in the graphs after AOTAutograd,
    where eager and compiled agree again. Then the model's own calls of torch: what Dynamo does wrong is already in its
    graphs.
    """
    notes: list[str] = []
    try:
        cases, notes = captured(subject, request, folder)
    except TargetError:
        cases = []  # Dynamo itself may be what fails.
    program = None
    try:
        program = captured_program(subject, request)
        if program is not None:
            write_bundle(program, folder / program.name)
    except CaseError as error:
        notes.append(f"the model's own calls: {error.message} ({error.hint})")
    ordered = [*(case for case in cases if case.level == DYNAMO), *([program] if program is not None else [])]
    ordered += [case for case in cases if case.level == AOT]
    return [case.name for case in ordered if (folder / case.name).is_dir()], notes


def find_in_bundles(
    what: Subject | Target,
    request: Request,
    folder: Path,
    pool: Pool,
    *,
    limits: Limits,
    judged: int = 0,
    whole: Verdict | None = None,
    listen: Callable[[str], None] | None = None,
    note: Callable[[list[str]], None] | None = None,
) -> Failing:
    """Capture a model and judge its graphs one by one, in workers; refuse where none fails.

    `judged` graphs of Dynamo's are known to agree. No answer is neither: it is counted, and the refusal tells. `whole`
    is the verdict on the model: what fails to run alone where the model runs is not what is looked for.
    """
    if listen is not None:
        listen("capturing, and judging every graph")
    if isinstance(what, Target):
        names, notes = captured_apart(what, request, folder, pool, limits)
    else:
        names, notes = candidates(what, request, folder)
    if note is not None:
        note(notes)
    asked, unknown, second = judged, list[str](), None
    for name in names:
        if judged and name.endswith(f"_{DYNAMO}"):
            continue
        asked += 1
        verdict = run_in(pool, folder / name, limits=limits)
        if whole is not None and raises_alone(verdict, whole):
            unknown.append(f"{name}: {verdict.reasons[0]}, alone")
        elif whole is not None and is_another(verdict, whole):
            second = second or Failing(folder=folder / name, verdict=verdict)
        elif verdict.status is Status.DIFFERS:
            return Failing(folder=folder / name, verdict=verdict)
        if verdict.status is Status.UNKNOWN:
            unknown.append(f"{name}: {'; '.join(verdict.reasons)}")
    if second is not None:
        if note is not None:
            note([f"no graph is as wrong as the model by itself; {second.folder.name} differs in another way"])
        return second
    rest = f", {len(unknown)} of them without an answer ({unknown[0]})" if unknown else ""
    if not asked and notes:
        rest = f": {notes[0]}"  # Why there is none to judge.
    raise NoFailingGraph(
        f"no graph of {what.title()} fails by itself ({asked} were judged{rest})",
        hint="`torchparity check` judges the model as a whole",
        unknown=len(unknown) or int(asked == 0),
    )


def find(
    what: Subject | Target,
    request: Request,
    folder: Path,
    pool: Pool,
    *,
    limits: Limits | None = None,
    listen: Callable[[str], None] | None = None,
) -> Failing:
    """Return the first graph of a model that fails by itself, as a bundle in a folder."""
    limits = limits or ONE_GRAPH
    judged, whole = 0, None
    if isinstance(what, Target):
        if listen is not None:
            listen("checking the model, and keeping its graphs")
        examined = examined_apart(what, request, folder, pool, limits)
        if examined.failing and examined.how is not None:
            return Failing(folder=folder / examined.failing, verdict=examined.how)
        judged, whole = examined.graphs, examined.verdict
        if examined.verdict.status is Status.SAME:
            raise NoFailingGraph(
                f"{what.title()} does not fail: {examined.verdict.reasons[0]}", hint="there is nothing to find"
            )
    return find_in_bundles(what, request, folder, pool, limits=limits, judged=judged, whole=whole, listen=listen)


def find_failing(
    model: Callable[..., Any] | Subject | Target | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_sets: Sequence[Any] = (),
    pool: Pool | None = None,
    limits: Limits | None = None,
    **options: Unpack[Options],
) -> tuple[Case, Verdict]:
    """Capture a model; return the first of its graphs that fails, judged in workers, and how; refuse if none does."""
    what = model if isinstance(model, Target) else subject_of(model, args, kwargs, input_sets)
    request = request_for("find_failing", options)
    with tempfile.TemporaryDirectory(prefix="torchparity-") as name, using(pool) as workers:
        found = find(what, request, Path(name), workers, limits=limits)
        return found.case, found.verdict
