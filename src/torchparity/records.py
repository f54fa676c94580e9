"""Every record that more than one folder knows. Frozen, keyword-only, no behaviour beyond derived values."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

SCHEMA_VERSION = 1
# Notes that a leaf can carry.
UNCHANGED = "unchanged"
IDENTICAL = "identical"
NOT_DETERMINISTIC = "not deterministic"
OTHER_RANDOM = "other random numbers"
KINK = "kink"
# Roles of leaves that a rank computes by itself, whatever the ranks do to their gradients.
OWN_ROLES = frozenset({"structure", "output", "loss"})


class Status(enum.Enum):
    """The three answers. There is no fourth, and none of them is true or false."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"

    def __bool__(self) -> NoReturn:
        raise TypeError("a Status has no truth value: compare it, as in `verdict.status is Status.SAME`")


class Kind(enum.Enum):
    """What sort of difference it is. Ordered from the plainest to the subtlest."""

    CRASHES = "crashes"
    RAISES = "raises"
    ACCEPTS_INVALID = "accepts_invalid"
    STRUCTURE = "structure"
    DTYPE = "dtype"
    SHAPE = "shape"
    DEVICE = "device"
    LAYOUT = "layout"
    STRIDE = "stride"
    ALIAS = "alias"
    REQUIRES_GRAD = "requires_grad"
    MUTATION = "mutation"
    NONFINITE = "nonfinite"
    INTEGER = "integer"
    OBJECT = "object"
    VALUE = "value"
    BIAS = "bias"


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One way in which a leaf of the candidate is not the leaf of the model."""

    kind: Kind
    detail: str
    where: tuple[int, ...] | None = None
    expected: str = ""
    actual: str = ""


@dataclass(frozen=True, kw_only=True)
class LeafReport:
    """The numbers of one leaf: an output, a gradient, a parameter, a buffer, an input, ...

    Errors are measured against the float64 reference (against eager where there is none) at the
    element with the worst score; `allowed` is what the noise allows there.
    """

    path: str
    role: str
    status: Status
    dtype: str
    shape: tuple[int, ...]
    eager_error: float = 0.0
    candidate_error: float = 0.0
    allowed: float = 0.0
    score: float = 0.0
    aggregate_score: float = 0.0
    eager_rms_error: float = 0.0
    candidate_rms_error: float = 0.0
    where: tuple[int, ...] | None = None
    wrong_elements: int = 0
    elements: int = 0
    has_reference: bool = False
    mismatches: tuple[Mismatch, ...] = ()
    note: str = ""

    @property
    def kind(self) -> str:
        """The first mismatch's kind, or an empty string."""
        return self.mismatches[0].kind.value if self.mismatches else ""

    @property
    def nearer_than_eager(self) -> bool:
        """Whether the candidate is clearly nearer to the reference than eager is."""
        return self.has_reference and self.candidate_rms_error < 0.75 * self.eager_rms_error


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One execution of the model: what it was, how it ended, how long it took."""

    name: str
    ending: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An exception that a run ended with, as facts (the exception itself keeps tensors alive)."""

    type: str
    message: str
    stage: str
    phase: str = ""
    frame: str = ""
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer: does the candidate compute what the model computes?"""

    status: Status
    reasons: tuple[str, ...]
    leaves: tuple[LeafReport, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    subject: str = ""
    threshold: float = 0.0
    failure: Failure | None = None
    differs_in: tuple[int, int] | None = None
    seconds: float = 0.0

    def __bool__(self) -> NoReturn:
        raise TypeError("a Verdict has no truth value: compare its status, as in `verdict.status is Status.SAME`")

    @property
    def kind(self) -> str:
        """What sort of difference it is: the worst leaf's, or, where no leaf differs, that of the run as a whole."""
        for leaf in self.leaves:
            if leaf.status is Status.DIFFERS:
                return leaf.kind
        if self.failure is None or self.status is not Status.DIFFERS:
            return ""
        whole = (Kind.ACCEPTS_INVALID.value, Kind.CRASHES.value)
        return self.failure.stage if self.failure.stage in whole else Kind.RAISES.value

    @property
    def worst(self) -> LeafReport | None:
        """The leaf that stands first: the worst one."""
        return self.leaves[0] if self.leaves else None

    @property
    def exit_code(self) -> int:
        """0 same, 1 differs, 125 unknown (for `git bisect run`)."""
        return {Status.SAME: 0, Status.DIFFERS: 1, Status.UNKNOWN: 125}[self.status]


@dataclass(frozen=True, kw_only=True)
class NodeError:
    """What one operation of a graph does: the error it introduces, and the error that has reached its result.

    Both in units of the noise, as scores are: a value over the threshold is no rounding. A kind is empty where
    nothing is wrong; `introduced` is None where it could not be told.
    """

    place: int
    name: str
    operation: str
    line: str = ""
    introduced: float | None = None
    introduced_kind: str = ""
    propagated: float | None = None
    propagated_kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Located:
    """Where a graph goes wrong.

    `culprit` is the operation that introduces the error; `others` introduce one too. `fusion` are operations whose
    values must not be looked at for the failure to show: it needs them in one kernel. `how` is one of `introduced`,
    `propagated`, `gradient`, `raises`, `fusion`.
    """

    subject: str
    kind: str
    how: str
    culprit: NodeError | None
    others: tuple[NodeError, ...] = ()
    fusion: tuple[NodeError, ...] = ()
    nodes: tuple[NodeError, ...] = ()
    threshold: float = 0.0
    compiles: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GraphDifference:
    """The first place at which one rank's graph is not another rank's; `here` and `there` are how it reads on both.

    Where there is no such graph on one of them, no node is named.
    """

    rank: int
    against: int
    graph: int
    here: str
    there: str
    node: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of an experiment: what was changed, and what came of it."""

    change: str
    status: Status
    kind: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Which stage of the compiler is to blame, and what in it.

    `stage` is one of dynamo, aot_autograd, decomposition, partitioner, pre_grad_passes, joint_graph_passes,
    post_grad_passes, lowerings, codegen, inductor, backend. `part` is the pass, the decomposition or the operation that
    was found there, `switch` a setting that makes the failure go away. `failing` and `passing` are the two runs that
    show it.
    """

    subject: str
    kind: str
    stage: str
    part: str = ""
    switch: Mapping[str, Any] = field(default_factory=dict)
    failing: Trial | None = None
    passing: Trial | None = None
    trials: tuple[Trial, ...] = ()
    seconds: float = 0.0

    @property
    def queries(self) -> int:
        """How many runs it took."""
        return len(self.trials)


@dataclass(frozen=True, kw_only=True)
class JointVerdict:
    """The verdicts of ranks that checked one model together, in their order.

    `unaveraged` are those of a second look, with the gradients that each rank has before they are averaged.
    """

    verdicts: tuple[Verdict, ...]
    unaveraged: tuple[Verdict, ...] = ()

    def __bool__(self) -> NoReturn:
        raise TypeError("a JointVerdict has no truth value: compare its status, as in `joint.status is Status.SAME`")

    @property
    def status(self) -> Status:
        """DIFFERS where any rank differs, else UNKNOWN where any is unknown, else SAME."""
        found = {verdict.status for verdict in self.verdicts}
        return next(status for status in (Status.DIFFERS, Status.UNKNOWN, Status.SAME) if status in found)

    @property
    def guilty(self) -> tuple[int, ...]:
        """The ranks that differ in what they compute by themselves, before anything is averaged over ranks."""
        by_outputs = [rank for rank, verdict in enumerate(self.verdicts) if differs_by_itself(verdict)]
        by_gradients = [rank for rank, verdict in enumerate(self.unaveraged) if verdict.status is Status.DIFFERS]
        return tuple(by_outputs or by_gradients)

    @property
    def worst(self) -> int:
        """The rank to look at first."""
        alike = [rank for rank, verdict in enumerate(self.verdicts) if verdict.status is self.status]
        return next((rank for rank in self.guilty if rank in alike), alike[0])

    @property
    def exit_code(self) -> int:
        """1 where any rank differs, else 125 where any is unknown, else 0."""
        return self.verdicts[self.worst].exit_code


def differs_by_itself(verdict: Verdict) -> bool:
    """Tell whether a rank raises, or differs in what a forward pass gives: no other rank has a part in that."""
    roles = {leaf.role for leaf in verdict.leaves if leaf.status is Status.DIFFERS}
    return verdict.status is Status.DIFFERS and (verdict.failure is not None or bool(roles & OWN_ROLES))


@dataclass(frozen=True, kw_only=True)
class PassResult:
    """What one pass did to one graph: whether it changed it, and whether the graph still computes the same.

    `difference` shows the change as a unified diff; `why` is the verdict's own reason where it is not SAME.
    """

    name: str
    stage: str
    number: int
    changed: bool
    status: Status
    kind: str = ""
    score: float = 0.0
    leaf: str = ""
    why: str = ""
    difference: str = ""


@dataclass(frozen=True, kw_only=True)
class PassesReport:
    """Every pass of a compilation, in order; `notes` tell what could not be judged, and why."""

    subject: str
    passes: tuple[PassResult, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def first(self) -> PassResult | None:
        """The first pass that changes the numbers."""
        return next((entry for entry in self.passes if entry.status is Status.DIFFERS), None)

    @property
    def status(self) -> Status:
        """DIFFERS where a pass changes the numbers, UNKNOWN where one could not be judged, else SAME."""
        found = {entry.status for entry in self.passes}
        return next((entry for entry in (Status.DIFFERS, Status.UNKNOWN) if entry in found), Status.SAME)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Which run of how many is about to start."""

    run: int
    runs: int
    name: str
    candidate: bool = False


ProgressCallback = Callable[[Progress], None]


# --- the story of one compilation ------------------------------------------------------------------

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
        """0 where the model was compiled and ran, 1 where it raised (the story goes up to there)."""
        return 0 if self.failure is None else 1
