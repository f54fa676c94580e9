"""Guard: a wrapper for any backend that catches a failing graph where it happens.

level      what it does
graph      writes a bundle where compiling or running a graph raises
launcher   the same, and the command that minifies it
always     writes a bundle before each graph is compiled and run, so that a segfault leaves it behind
accuracy   judges each graph by the oracle at its first call; a difference writes a bundle and raises

After its first call a graph is called directly.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch
from torch.fx import GraphModule

from torchparity import torchapi
from torchparity.compilers.candidates import Ready, compile_graph, copy_on_same_tensors
from torchparity.compilers.recipe import recipe_of, recipe_plain
from torchparity.errors import AccuracyError, CaseError, ParityError, UsageError
from torchparity.judge.oracle import Oracle
from torchparity.judge.script import write_bundle
from torchparity.judge.settings import settings_of
from torchparity.observe.capture import DYNAMO, device_of, observed_case, random_states
from torchparity.records import Failure, Status, Verdict, signature_of
from torchparity.repro.case import Case, write_graph
from torchparity.request import JUDGE_OPTIONS, OtherOptions, Request, request_for, suggestion
from torchparity.run.plan import Plan
from torchparity.run.step import Ending, Runner, describe_failure
from torchparity.run.subject import Subject

T = TypeVar("T")
LEVELS = ("graph", "launcher", "always", "accuracy")
ON_DIFFERENCE = ("raise", "eager")
RUNS = "torchparity_runs"

_numbers = itertools.count(1)
# One graph is judged at a time: random generators and the compiler's stance belong to the whole process.
_judging = threading.RLock()


class GuardWarning(UserWarning):
    """Something the guard wants known while the program goes on."""


class Guard:
    """A torch.compile backend that stands before another one."""

    def __init__(self, request: Request, *, level: str, out: Path, on_difference: str) -> None:
        self.request = request
        self.level = level
        self.on_difference = on_difference
        self.out = out
        self.started = time.strftime("%Y%m%d-%H%M%S")
        self.number = next(_numbers)
        self.verdicts: list[Verdict] = []
        self.bundles: list[Path] = []
        self.graphs = 0
        self.__name__ = f"guard({recipe_plain(request).backend_name()})"

    @property
    def folder(self) -> Path:
        """Where bundles go: a folder for each guard in each process, a forked one too."""
        return self.out / f"{self.started}-{os.getpid()}-{self.number}"

    def __call__(
        self,
        graph_module: GraphModule,
        inputs: list[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Compile as torch.compile asks a backend to."""
        refuse_own(options or {})
        self.graphs += 1
        request = replace(self.request, mode=mode, options=dict(options or {}))
        recipe = recipe_plain(request)
        watched = Watched(self, request, graph_module, inputs, number=self.graphs)
        if self.level == "always":
            watched.save(inputs)
        try:
            compiled = compile_graph(recipe, graph_module, inputs)
        except Exception as error:
            watched.save(inputs, failure=describe_failure(error, "compile"))
            raise
        if self.level == "always":
            return compiled
        slot: list[Callable[..., Any]] = []

        def first(*args: Any) -> Any:
            slot[0] = compiled
            with _judging:
                slot[0] = watched.look(compiled, list(args))
            return slot[0](*args)

        def guarded(*args: Any) -> Any:
            return slot[0](*args)

        slot.append(first)
        return guarded


def refuse_own(options: Mapping[str, Any]) -> None:
    """Raise where torch.compile's options hold what is said to the guard itself."""
    own = [name for name in options if name in OWN]
    if own:
        raise UsageError(
            f"{own[0]} is the guard's, not an option of the backend that it guards",
            hint=f"torch.compile(model, backend=torchparity.guard({own[0]}={options[own[0]]!r}))",
        )


class Watched:
    """One graph under guard, from its compilation to its first call."""

    def __init__(
        self, guard: Guard, request: Request, graph_module: GraphModule, inputs: list[Any], *, number: int
    ) -> None:
        self.guard = guard
        self.request = request
        self.recipe = recipe_plain(request)
        self.name = f"{number:03d}_{DYNAMO}"
        self.origin = {"graph": number, "ends": torchapi.end_of_graph(graph_module)}
        self.written = attempt(lambda: write_graph(graph_module, inputs))
        with torchapi.no_dispatch_modes():
            self.eager = copy_on_same_tensors(graph_module)

    def look(self, compiled: Callable[..., Any], inputs: list[Any]) -> Callable[..., Any]:
        """See how the compiled graph does on the inputs of its first call; return what is to be called from now on."""
        case = self.case(inputs)
        if self.guard.level == "accuracy":
            return self.judge(compiled, inputs, case)
        ending = attempt(lambda: self.run(compiled, inputs))
        if isinstance(ending, ParityError):
            warn(f"{self.name} was not tried: {ending.message}")
        elif ending.failure is not None:
            self.write(case, failure=ending.failure)
        return compiled

    def run(self, compiled: Callable[..., Any], inputs: list[Any]) -> Ending:
        """Run the compiled graph once, on copies of its inputs."""
        runner = Runner(Subject(self.eager, tuple(inputs), name=self.name), self.plan(inputs))
        try:
            with self.recipe.active():
                return runner.run(compiled, lambda leaf: None)
        finally:
            runner.release()

    def plan(self, inputs: list[Any]) -> Plan:
        """Return how the graph is run: with gradients where they are on, from the random numbers of now."""
        return Plan(
            backward=torch.is_grad_enabled(),
            differentiates=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            random=random_states(device_of(inputs)),
        )

    def judge(self, compiled: Callable[..., Any], inputs: list[Any], case: Case | ParityError) -> Callable[..., Any]:
        """Ask the oracle; on a difference write the bundle and raise, or go on with eager."""
        ready = Ready(self.recipe, tuple(inputs), compiled, self.recipe.config)
        subject = Subject(self.eager, tuple(inputs), name=self.name)
        settings = settings_of(self.request)
        verdict = attempt(lambda: Oracle(subject, self.plan(inputs), ready, settings).judge())
        if isinstance(verdict, ParityError):
            warn(f"{self.name} could not be judged: {verdict.message}")
            return compiled
        self.guard.verdicts.append(verdict)
        if verdict.status is Status.SAME:
            return compiled
        if verdict.status is Status.UNKNOWN:
            warn(f"{self.name} cannot be judged: {verdict.reasons[0] if verdict.reasons else 'no reason given'}")
            return compiled
        path = self.write(case, verdict=verdict)
        where = f"; it is in {path}" if path is not None else ""
        message = f"graph {self.name}: {verdict.reasons[0]}{where}"
        if self.guard.on_difference == "eager":
            warn(f"{message}; going on with eager")
            return self.eager.forward
        hint = f"`torchparity run {path}` shows it again" if path is not None else "see `verdict` of this exception"
        raise AccuracyError(message, hint=hint, verdict=verdict)

    # --- writing -------------------------------------------------------------------------------------

    def case(self, inputs: list[Any]) -> Case | ParityError:
        """Return the case of the call that is about to happen, or why there is none."""
        if isinstance(self.written, ParityError):
            return self.written
        written = self.written
        return attempt(
            lambda: observed_case(
                written,
                inputs,
                name=self.name,
                level=DYNAMO,
                direction="both",
                request=self.request,
                origin=self.origin,
            )
        )

    def save(self, inputs: list[Any], *, failure: Failure | None = None) -> Path | None:
        """Write the bundle of a graph and its inputs."""
        return self.write(self.case(inputs), failure=failure)

    def write(
        self, case: Case | ParityError, *, failure: Failure | None = None, verdict: Verdict | None = None
    ) -> Path | None:
        """Write a bundle; what cannot be written is said in a warning, and the program goes on."""
        if isinstance(case, ParityError):
            warn(f"{self.name} was not written: {case.message} ({case.hint})")
            return None
        try:
            path = write_bundle(replace(case, signature=signature_of(failure, verdict)), self.guard.folder / self.name)
        except (OSError, ParityError) as error:
            warn(f"{self.name} was not written to {self.guard.folder}: {error}; the graph and its inputs are lost")
            return None
        if path not in self.guard.bundles:
            self.guard.bundles.append(path)
        if self.guard.level == "launcher" and failure is not None:
            warn(f"{self.name} fails; make it small with `torchparity minify {path}`")
        elif failure is not None:
            warn(f"{self.name} fails with {failure.type}; it is in {path}")
        return path


def attempt(action: Callable[[], T]) -> T | ParityError:
    """Return what an action makes, or why it makes nothing: what we do must not end the user's program."""
    try:
        return action()
    except ParityError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the program goes on, and the warning says what was lost
        hint = "this is a defect of torchparity: please report it"
        return CaseError(f"{type(error).__name__}: {error}", hint=hint)


def warn(message: str) -> None:
    """Warn in the guard's name."""
    warnings.warn(f"torchparity: {message}", GuardWarning, stacklevel=2)


def guard(
    backend: str | Callable[..., Any] | None = None,
    *,
    level: str | None = None,
    out: str | os.PathLike[str] | None = None,
    on_difference: str = "raise",
    **options: Unpack[OtherOptions],
) -> Guard:
    """Return a torch.compile backend that stands before another one and catches what goes wrong.

    What is not given comes from the environment: TORCHPARITY_BACKEND (inductor), TORCHPARITY_LEVEL (accuracy)
    and TORCHPARITY_OUT (torchparity_runs). Options are those of `check` that say how graphs are judged, and `config`.
    """
    chosen = level or os.environ.get("TORCHPARITY_LEVEL") or "accuracy"
    if chosen not in LEVELS:
        hint = suggestion(chosen, LEVELS, f"the levels are {', '.join(LEVELS)}")
        raise UsageError(f"there is no guard level {chosen!r}", hint=hint)
    if on_difference not in ON_DIFFERENCE:
        raise UsageError(f"on_difference cannot be {on_difference!r}", hint="use 'raise' or 'eager'")
    guarded = backend or os.environ.get("TORCHPARITY_BACKEND") or "inductor"
    if guarded == "torchparity" or isinstance(guarded, Guard):
        raise UsageError("a guard cannot guard itself", hint="name the backend to guard, such as 'inductor'")
    request = request_for("guard", {**options, "backend": guarded})
    recipe_of(request)
    folder = Path(out or os.environ.get("TORCHPARITY_OUT") or RUNS)
    return Guard(request, level=chosen, out=folder, on_difference=on_difference)


# What is said to the guard, and not to torch.compile.
OWN = ("backend", "level", "out", "on_difference", *JUDGE_OPTIONS, "config")

_by_environment: dict[tuple[str | None, ...], Guard] = {}


def backend(graph_module: GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
    """Compile for `torch.compile(model, backend="torchparity")`: a guard with the settings of the environment."""
    settings = tuple(os.environ.get(f"TORCHPARITY_{name}") for name in ("BACKEND", "LEVEL", "OUT"))
    if settings not in _by_environment:
        _by_environment[settings] = guard()
    return _by_environment[settings](graph_module, inputs, **options)
