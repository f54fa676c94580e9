"""The story of one compilation, as records."""

from __future__ import annotations

from dataclasses import dataclass

from torchparity.records.verdict import Failure

# How a frame ended.
COMPILED = "compiled"
LEFT_TO_PYTHON = "left to Python"
FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of time: when it began, counted from the start of the story, and how long it took, in seconds."""

    start: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line of source: the file, its number, the function it is in, its text."""

    file: str = ""
    line: int = 0
    function: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Inlined:
    """A function that Dynamo traced into, with all calls from the same place above it counted together."""

    function: str
    place: Place
    depth: int
    times: int
    steps: int
    library: bool = False  # Torch's or Python's own, not the user's.


@dataclass(frozen=True, kw_only=True)
class Break:
    """Why, and at which line of the user's, a graph ended before its frame did."""

    reason: str
    place: Place
    explanation: str = ""


@dataclass(frozen=True, kw_only=True)
class GraphInput:
    """An input of a graph; `state` tells parameters and buffers from what the caller gave."""

    name: str
    dtype: str
    sizes: tuple[str, ...] = ()
    elements: int = 1
    state: bool = False


@dataclass(frozen=True, kw_only=True)
class SizeSymbol:
    """A size that is left open: its name, its value in this run, and the range that it may have (None: no end)."""

    name: str
    value: int | float | None = None
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, kw_only=True)
class Body:
    """A graph inside a graph: a branch of a `cond`, the body of a `while_loop`."""

    operator: str
    name: str
    operations: int


@dataclass(frozen=True, kw_only=True)
class Subgraph:
    """One graph that was handed to the backend; `backward` tells of its backward pass where it was compiled later."""

    number: int
    operations: int
    compiled: Span
    inputs: tuple[GraphInput, ...] = ()
    symbols: tuple[SizeSymbol, ...] = ()
    bodies: tuple[Body, ...] = ()
    backward: Span | None = None


@dataclass(frozen=True, kw_only=True)
class Recompile:
    """Why an earlier compilation of the same frame did not fit: the first of its guards that failed."""

    earlier: str
    guard: str


@dataclass(frozen=True, kw_only=True)
class FrameStory:
    """One compilation of one function: of its whole, or of what was left of it after a graph break.

    `name` is the compiler's: frame 3, compiled for the second time, is `3/1`. `resumes_after` is the line of the
    break that a rest begins after. `steps` are the instructions of the last of `attempts`: Dynamo begins again
    where it meets a break. `ends` is the break that ended the graph, None where the function returned.
    """

    name: str
    function: str
    place: Place
    call: int
    compiled: Span
    resumes_after: int | None = None
    outcome: str = COMPILED
    reason: str = ""
    refused_at: Place | None = None
    attempts: int = 1
    steps: int = 0
    inlined: tuple[Inlined, ...] = ()
    subgraphs: tuple[Subgraph, ...] = ()
    ends: Break | None = None
    guards: tuple[str, ...] = ()
    recompiles: tuple[Recompile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CallStory:
    """One call of the model: what it was given, when, and how long it took, compilation included."""

    number: int
    inputs: tuple[str, ...]
    ran: Span


@dataclass(frozen=True, kw_only=True)
class Story:
    """What happened when a model was compiled and called. `notes` say which parts could not be told."""

    subject: str
    backend: str
    torch: str
    calls: tuple[CallStory, ...] = ()
    frames: tuple[FrameStory, ...] = ()
    notes: tuple[str, ...] = ()
    failure: Failure | None = None
    seconds: float = 0.0

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """Every graph that was compiled, in order."""
        return tuple(subgraph for frame in self.frames for subgraph in frame.subgraphs)

    @property
    def breaks(self) -> tuple[Break, ...]:
        """Every graph break, each line once, however often its frame was compiled."""
        found = {(frame.ends.place, frame.ends.reason): frame.ends for frame in self.frames if frame.ends is not None}
        return tuple(found.values())

    @property
    def recompiled(self) -> tuple[FrameStory, ...]:
        """The compilations that an earlier one would have made needless, had its guards held."""
        return tuple(frame for frame in self.frames if frame.recompiles)

    @property
    def compile_seconds(self) -> float:
        """How long Dynamo and the backend took, backward passes included."""
        late = [subgraph.backward.seconds for subgraph in self.subgraphs if subgraph.backward is not None]
        return sum(frame.compiled.seconds for frame in self.frames) + sum(late)

    @property
    def exit_code(self) -> int:
        """0 where the model was compiled and ran, 125 where it raised (the story goes up to there)."""
        return 0 if self.failure is None else 125
