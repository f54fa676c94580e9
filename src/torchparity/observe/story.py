"""The story of one compilation: a model is compiled and called for real, and Dynamo and the backend are watched.

The backend is wrapped, and Dynamo tells a listener what it does. Neither changes what is compiled, and what goes
wrong in the telling is a note in the story.
"""

from __future__ import annotations

import re
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.fx import GraphModule

from torchparity import torchapi
from torchparity.compare.leaves import walk
from torchparity.compilers.candidates import compile_graph
from torchparity.compilers.recipe import Recipe, recipe_of
from torchparity.errors import UsageError
from torchparity.observe.subgraph import described, dtype_name
from torchparity.records import (
    COMPILED,
    FAILED,
    LEFT_TO_PYTHON,
    Break,
    CallStory,
    FrameStory,
    Inlined,
    Place,
    Progress,
    ProgressCallback,
    Recompile,
    Span,
    Story,
    Subgraph,
)
from torchparity.request import Request
from torchparity.run.plan import plan_of
from torchparity.run.step import Runner
from torchparity.run.subject import Subject
from torchparity.run.variants import at_batch

RESUMED = re.compile(r"(?P<before>.*?)torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")
# What Dynamo puts before the reason itself, and what stands for a reason that it gave before.
PREAMBLE = re.compile(r".*Graph break encountered:\s*", re.DOTALL)
TOLD_BEFORE = "step_unsupported"
# Reasons that are names of the compiler's own.
PLAIN_REASONS = {"generic_jump": "a branch that depends on the values of a tensor"}
TORCH_FOLDER, PYTHON_FOLDER = Path(torch.__file__).parent, Path(sysconfig.get_path("stdlib"))
PACKAGES = ("site-packages", "dist-packages")


def tell_story(subject: Subject, request: Request, *, progress: ProgressCallback | None = None) -> Story:
    """Compile a model, call it with each of its inputs in turn, and say what happened."""
    recipe, plan = recipe_of(request, dynamic=subject.dynamic), plan_of(request, subject)
    if recipe.engine is not None:
        raise UsageError(
            f"there is no story of {recipe.engine.name}: it runs what torch.export exports",
            hint="`torchparity explain` tells what torch.compile does; leave out --backend",
        )
    teller = Teller(recipe)
    runner = Runner(subject, plan)
    # The backend is handed its mode and options by the teller; the settings and the cache are active around it all.
    watched = replace(recipe, backend=teller, mode=None, options={})
    count = len(runner.calls) * plan.steps
    try:
        with torch.enable_grad(), watched.active():
            compiled = watched.build(subject.model)

            def call(*args: Any, **kwargs: Any) -> Any:
                teller.call_ended()
                if progress is not None:
                    progress(Progress(run=len(teller.calls) + 1, runs=count, name="compiling and calling"))
                teller.call_started(sizes_of(args, kwargs))
                return compiled(*args, **kwargs)

            teller.began = time.perf_counter()
            with torchapi.dynamo.watching_dynamo(teller):
                ending = runner.run(call, lambda leaf: None)
            teller.call_ended()
    finally:
        torch.compiler.reset()
        runner.release()
    frames = [frame.finished() for frame in teller.frames]
    failed_to_compile = ending.failure is not None and ending.failure.stage == "compile"
    if failed_to_compile and frames and frames[-1].outcome == LEFT_TO_PYTHON:
        frames[-1] = replace(frames[-1], outcome=FAILED)
    return Story(
        subject=subject.title(),
        backend=recipe.backend_name(),
        torch=str(torch.__version__),
        calls=tuple(teller.calls),
        frames=tuple(frames),
        notes=tuple(teller.notes),
        failure=ending.failure,
        seconds=ending.seconds,
    )


def with_calls(subject: Subject, *, times: int, batches: tuple[int, ...] = ()) -> Subject:
    """Return a subject that is called so often with each of its inputs, and with the first at other batch sizes."""
    calls = subject.calls()
    calls += [at_batch(calls[0], batch) for batch in batches]
    return replace(subject, input_sets=tuple(call for call in calls for _ in range(times)))


def sizes_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return dtype and sizes of the tensors that a call is given."""
    tensors = [leaf for _, leaf in walk((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    return tuple(f"{dtype_name(tensor)}{list(tensor.shape)}" for tensor in tensors)


# --- listening -----------------------------------------------------------------------------------


@dataclass
class Traced:
    """A function that is being traced, and those inside it, calls of one function from one place counted together."""

    code: CodeType
    times: int = 0
    steps: int = 0
    inside: dict[CodeType, Traced] = field(default_factory=dict)

    def flat(self, depth: int = 1) -> Iterator[Inlined]:
        """Yield what is inside, each function before those inside it."""
        for code, traced in self.inside.items():
            yield Inlined(
                function=code.co_qualname,
                place=place_of(code),
                depth=depth,
                times=traced.times,
                steps=traced.steps,
                library=is_library(code.co_filename),
            )
            yield from traced.flat(depth + 1)

    def all_steps(self) -> int:
        """Return the steps of the function and of everything inside it."""
        return self.steps + sum(traced.all_steps() for traced in self.inside.values())


@dataclass
class OpenFrame:
    """A frame as far as it has been heard of."""

    name: str
    code: CodeType
    call: int
    start: float
    seconds: float = 0.0
    attempts: int = 0
    stack: list[Traced] = field(default_factory=list)
    last: Traced | None = None
    met: Break | None = None
    ends: Break | None = None
    outcome: str = COMPILED
    reason: str = ""
    refused_at: Place | None = None
    guards: tuple[str, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    subgraphs: list[Subgraph] = field(default_factory=list)

    def finished(self) -> FrameStory:
        """Return the record of it."""
        function, resumes_after = function_name(self.code.co_qualname)
        return FrameStory(
            name=self.name,
            function=function,
            place=place_of(self.code),
            call=self.call,
            compiled=Span(start=self.start, seconds=self.seconds),
            resumes_after=resumes_after,
            outcome=self.outcome,
            reason=self.reason,
            refused_at=self.refused_at,
            attempts=self.attempts,
            steps=self.last.all_steps() if self.last is not None else 0,
            inlined=tuple(self.last.flat()) if self.last is not None else (),
            subgraphs=tuple(self.subgraphs),
            ends=self.ends,
            guards=self.guards,
            recompiles=self.recompiles,
        )


class Teller:
    """A torch.compile backend that stands before another one, and the listener that Dynamo tells its part to."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = replace(recipe, config={}, fresh_cache=False)
        self.began = time.perf_counter()
        self.frames: list[OpenFrame] = []
        self.calls: list[CallStory] = []
        self.notes: list[str] = []
        self._open: list[OpenFrame] = []
        self._call: CallStory | None = None
        self._graphs = 0
        self._backward: dict[str, float] = {}
        self.__name__ = recipe.backend_name()

    def now(self) -> float:
        """Return the seconds since the story began."""
        return time.perf_counter() - self.began

    def since(self, start: float) -> Span:
        """Return the time from then to now."""
        return Span(start=start, seconds=self.now() - start)

    # The backend.

    def __call__(self, graph_module: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Compile as torch.compile asks a backend to."""
        self._graphs += 1
        number, start = self._graphs, self.now()
        try:
            # A backend may change the graph, so that it is looked at before.
            subgraph = described(graph_module, number)
        except Exception as error:  # noqa: BLE001 - the graph is compiled all the same
            self.not_heard(f"what is in subgraph {number}", error)
            subgraph = Subgraph(number=number, operations=0, compiled=Span(start=start, seconds=0.0))
        start = self.now()
        try:
            return compile_graph(self.recipe, graph_module, inputs)
        finally:
            if self._open:
                self._open[-1].subgraphs.append(replace(subgraph, compiled=self.since(start)))

    # Calls of the model.

    def call_started(self, inputs: tuple[str, ...]) -> None:
        """The model is about to be called."""
        self._call = CallStory(number=len(self.calls) + 1, inputs=inputs, ran=Span(start=self.now(), seconds=0.0))

    def call_ended(self) -> None:
        """The call is over, its backward pass included."""
        if self._call is not None:
            self.calls.append(replace(self._call, ran=self.since(self._call.ran.start)))
        self._call = None

    # What Dynamo tells.

    def frame_entered(self, name: str, code: CodeType) -> None:
        """Dynamo begins to compile a function."""
        number = self._call.number if self._call is not None else 0
        frame = OpenFrame(name=name, code=code, call=number, start=self.now())
        self.frames.append(frame)
        self._open.append(frame)

    def frame_left(self, guards: list[str] | None, skipped: str, error: BaseException | None) -> None:
        """It is done: with guards, or with the reason why the function is left to Python, or with an error."""
        frame = self._open.pop()
        frame.seconds = self.now() - frame.start
        if guards is not None:
            frame.guards = tuple(guards)
            return
        frame.outcome, frame.ends = LEFT_TO_PYTHON, None
        if error is not None:
            inner = torchapi.inner_failure(error)
            kind = "" if inner is error else f"{type(inner).__name__}: "
            frame.reason = kind + reason_of(str(inner))[0]
            lines = torchapi.dynamo.failure_lines(error)
            frame.refused_at = innermost(lines) if lines else None
        elif frame.met is not None:
            frame.reason, frame.refused_at = frame.met.reason, frame.met.place
        else:
            frame.reason = reason_of(skipped)[0]

    def function_entered(self, code: CodeType) -> None:
        """Dynamo begins to trace a function: the frame itself, once for each attempt, or one inside it."""
        frame = self._open[-1]
        if not frame.stack:
            frame.attempts += 1
            frame.last = traced = Traced(code)
        else:
            traced = frame.stack[-1].inside.setdefault(code, Traced(code))
        traced.times += 1
        frame.stack.append(traced)

    def function_left(self) -> None:
        """It is done with that function."""
        self._open[-1].stack.pop()

    def stepped(self) -> None:
        """One instruction is about to be traced."""
        self._open[-1].stack[-1].steps += 1

    def break_met(self, reason: str, lines: list[torchapi.dynamo.Line]) -> None:
        """Dynamo has met what it cannot trace, and will begin again or give the function up."""
        self._open[-1].met = break_of(reason, lines)

    def graph_ended(self, reason: str, lines: list[torchapi.dynamo.Line], is_break: bool) -> None:
        """A graph is complete, because the function returned or because it broke."""
        frame = self._open[-1]
        if not is_break:
            frame.ends = None
        elif reason == TOLD_BEFORE and frame.met is not None:
            frame.ends = frame.met
        else:
            frame.ends = break_of(reason, lines)

    def recompiling(self, reasons: list[str]) -> None:
        """What was compiled for this function before did not fit; one reason for each."""
        parts = [reason.partition(": ") for reason in reasons]
        self._open[-1].recompiles = tuple(
            Recompile(earlier=name, guard=guard.strip()) if guard else Recompile(earlier="", guard=name.strip())
            for name, _, guard in parts
        )

    def backward_started(self, name: str) -> None:
        """The backward pass of a frame is about to be compiled, when it is first needed."""
        self._backward[name] = self.now()

    def backward_ended(self, name: str) -> None:
        """It has been compiled."""
        span = self.since(self._backward.pop(name))
        found = [frame for frame in self.frames if frame.name == name and frame.subgraphs]
        if found:
            graphs = found[-1].subgraphs
            # One frame makes one graph, unless something splits it: the last goes backward first.
            place = max((place for place, graph in enumerate(graphs) if graph.backward is None), default=None)
            if place is not None:
                graphs[place] = replace(graphs[place], backward=span)

    def not_heard(self, what: str, error: BaseException) -> None:
        """Something above could not be told: it is a note, once."""
        lines = str(getattr(error, "message", error)).strip().splitlines() or [""]
        note = f"{what} is not told: {type(error).__name__}: {lines[0]}"
        if note not in self.notes:
            self.notes.append(note)


# --- what was heard, in plain facts --------------------------------------------------------------


def function_name(name: str) -> tuple[str, int | None]:
    """Return a function's own name and, where it is the rest of one, the line that it begins after."""
    found = RESUMED.match(name)
    return (found["before"] + found["function"], int(found["line"])) if found else (name, None)


def place_of(code: CodeType) -> Place:
    """Return where a function is defined."""
    name, _ = function_name(code.co_qualname)
    return Place(file=code.co_filename, line=code.co_firstlineno, function=name)


def is_library(file: str) -> bool:
    """Tell whether a file is torch's or Python's own."""
    if file.startswith("<"):
        return True
    path = Path(file)
    if path.is_relative_to(TORCH_FOLDER):
        return True
    return path.is_relative_to(PYTHON_FOLDER) and not any(part in PACKAGES for part in path.parts)


def innermost(lines: list[torchapi.dynamo.Line]) -> Place:
    """Return the innermost line of a stack that is not torch's or Python's own."""
    own = [line for line in lines if not is_library(line[0])]
    file, number, function, source = (own or lines or [("", 0, "", "")])[-1]
    return Place(file=file, line=number, function=function_name(function)[0], source=source.strip())


def break_of(reason: str, lines: list[torchapi.dynamo.Line]) -> Break:
    """Return a break as a record."""
    short, explanation = reason_of(reason)
    return Break(reason=short, explanation=explanation, place=innermost(lines))


def reason_of(text: str) -> tuple[str, str]:
    """Return what Dynamo says in one line, and its explanation in another, without its hints and addresses."""
    lines = [line.strip() for line in PREAMBLE.sub("", text.strip()).splitlines() if line.strip()]
    if not lines:
        return "no reason given", ""
    plain = next((words for name, words in PLAIN_REASONS.items() if lines[0].startswith(name)), "")
    if plain:
        return plain, ""
    explained = (line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:"))
    return lines[0], next(explained, "")
