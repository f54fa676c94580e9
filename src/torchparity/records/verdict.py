"""The verdict, and what it is made of."""

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
NO_NUMBER = "no number"
NOT_COMPARED = "not compared"
NOT_JUDGED = "not judged"
UNINITIALISED = "uninitialised"
FLUSHED = "flushed"


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
    OUT_OF_BOUNDS = "out_of_bounds"
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


class Severity(enum.Enum):
    """How much a difference matters, from the least to the most.

    LAYOUT      every value agrees; strides, aliases or requires_grad differ
    PRECISION   small values lost their precision, by less than the leaf's own size would ever show
    WRONG       values are wrong
    NONFINITE   NaN or Inf stands where it should not, or does not where it should
    STRUCTURE   another type, dtype, shape, or a leaf that is missing
    FAILS       the compiled model raises, crashes, writes outside its memory, or returns where the model itself raises
    """

    NONE = "none"
    LAYOUT = "layout"
    PRECISION = "precision"
    WRONG = "wrong"
    NONFINITE = "nonfinite"
    STRUCTURE = "structure"
    FAILS = "fails"

    @property
    def rank(self) -> int:
        """Its place in the order."""
        return list(Severity).index(self)

    def reaches(self, other: Severity) -> bool:
        """Tell whether it matters as much as another one."""
        return self.rank >= other.rank


SEVERITY_OF = {
    **dict.fromkeys((Kind.STRIDE, Kind.ALIAS, Kind.REQUIRES_GRAD), Severity.LAYOUT),
    **dict.fromkeys((Kind.INTEGER, Kind.OBJECT, Kind.VALUE, Kind.BIAS, Kind.MUTATION), Severity.WRONG),
    Kind.NONFINITE: Severity.NONFINITE,
    **dict.fromkeys((Kind.STRUCTURE, Kind.DTYPE, Kind.SHAPE, Kind.DEVICE, Kind.LAYOUT), Severity.STRUCTURE),
    **dict.fromkeys((Kind.CRASHES, Kind.RAISES, Kind.ACCEPTS_INVALID, Kind.OUT_OF_BOUNDS), Severity.FAILS),
}


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One way in which a leaf of the candidate is not the leaf of the model."""

    kind: Kind
    detail: str
    where: tuple[int, ...] | None = None
    expected: str = ""
    actual: str = ""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How the errors of a leaf are spread: counts by powers of two, from `2**first` upwards.

    `exact` are the elements without any error, of eager and of the candidate. Of a large leaf a sample is counted.
    """

    first: int
    eager: tuple[int, ...]
    candidate: tuple[int, ...]
    exact: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class LeafReport:
    """The numbers of one leaf: an output, a gradient, a parameter, a buffer, an input, ...

    Errors are measured against the float64 reference (against eager where there is none) at the
    element with the worst score; `allowed` is what the noise allows there. `moved` is the size of the candidate's whole
    error against the size of the leaf; `small` tells that no element is off by more than a rounding of the largest one.
    `aggregate_score` is the worst of its sums, `lone_score` the worst of those that have few of their kind beside them.
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
    lone_score: float = 0.0
    eager_rms_error: float = 0.0
    candidate_rms_error: float = 0.0
    where: tuple[int, ...] | None = None
    wrong_elements: int = 0
    elements: int = 0
    has_reference: bool = False
    mismatches: tuple[Mismatch, ...] = ()
    note: str = ""
    histogram: Histogram | None = None
    moved: float = 0.0
    small: bool = False
    exact: bool = False

    @property
    def severity(self) -> Severity:
        """How much the difference matters."""
        found = {SEVERITY_OF[mismatch.kind] for mismatch in self.mismatches}
        if found == {Severity.WRONG} and self.small and self.kind == Kind.VALUE.value:
            return Severity.PRECISION
        return max(found, key=lambda severity: severity.rank, default=Severity.NONE)

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
    """An exception that a run ended with, as facts (the exception itself keeps tensors alive).

    `lacking` says what the machine lacks, where that is why.
    """

    type: str
    message: str
    stage: str
    phase: str = ""
    frame: str = ""
    traceback: str = ""
    lacking: str = ""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much of the model was compiled: operations that ran in graphs, of those that eager runs; and how many graphs.

    Without a reference nobody has counted what eager runs: then `operations` is 0. `left` is why code was left to
    Python, in the compiler's words.
    """

    inside: int
    operations: int
    graphs: int
    left: tuple[str, ...] = ()

    @property
    def share(self) -> float | None:
        """The share that was compiled, where both were counted."""
        return min(1.0, self.inside / self.operations) if self.operations else None


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """An operation that the compiler tunes: the kernels it may take, the one it took, and those that are wrong.

    What cannot be used here (too large for the device, say) was not taken by the compiler either. Where the compiled
    code came from a cache, nobody knows what was taken.
    """

    kernel: str
    shapes: str
    choices: tuple[str, ...]
    taken: str = ""
    wrong: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()


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
    compiled: Extent | None = None
    # Leaves that exact data left exact, and that were compared without any tolerance.
    exact: tuple[str, ...] = ()
    tuned: tuple[Tuned, ...] = ()

    def __bool__(self) -> NoReturn:
        raise TypeError("a Verdict has no truth value: compare its status, as in `verdict.status is Status.SAME`")

    @property
    def severity(self) -> Severity:
        """How much it matters: that of the leaf for which it matters most, or of the run as a whole."""
        if self.status is not Status.DIFFERS:
            return Severity.NONE
        found = [leaf.severity for leaf in self.leaves if leaf.status is Status.DIFFERS]
        found += [Severity.FAILS] if self.failure is not None else []
        return max(found, key=lambda severity: severity.rank, default=Severity.WRONG)

    @property
    def kind(self) -> str:
        """What sort of difference it is: that of the run as a whole, where it failed; else the worst leaf's."""
        if self.failure is not None and self.status is Status.DIFFERS:
            whole = (Kind.ACCEPTS_INVALID.value, Kind.CRASHES.value)
            return self.failure.stage if self.failure.stage in whole else Kind.RAISES.value
        return next((leaf.kind for leaf in self.leaves if leaf.status is Status.DIFFERS), "")

    @property
    def worst(self) -> LeafReport | None:
        """The leaf that stands first: the worst one."""
        return self.leaves[0] if self.leaves else None

    def fails(self, level: Severity = Severity.NONE) -> bool:
        """Tell whether it differs, and matters as much as a level."""
        return self.status is Status.DIFFERS and self.severity.reaches(level)

    @property
    def exit_code(self) -> int:
        """0 same, 1 differs, 125 unknown (for `git bisect run`)."""
        return {Status.SAME: 0, Status.DIFFERS: 1, Status.UNKNOWN: 125}[self.status]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Which run of how many is about to start, or in the midst of it a `bundle` that was written for who wants it.

    `candidate` tells that it is the compiled model's, `after_candidate` that such a run was made in this process, and
    `device` where it runs. A device that works longer than `patience` seconds on it is taken to hang.
    """

    run: int
    runs: int
    name: str
    candidate: bool = False
    after_candidate: bool = False
    bundle: str = ""
    device: str = "cpu"
    patience: float = 0.0


ProgressCallback = Callable[[Progress], None]
