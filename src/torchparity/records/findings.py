"""What was found out about a failure: where it comes from, who is to blame, what each pass did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchparity.records.verdict import Status

# Between a source line of the user and the one of a library that it leads to.
THROUGH = ", through "


@dataclass(frozen=True, kw_only=True)
class NodeError:
    """What one operation of a graph does: the error it introduces, and the error that has reached its result.

    Both in units of the noise, as scores are: a value over the threshold is no rounding. A kind is empty where
    nothing is wrong; `introduced` is None where it could not be told. `leads` tells whether its wrong value alone, put
    into an eager run, makes the outputs wrong; None where that was not asked: it is the only one.
    """

    place: int
    name: str
    operation: str
    line: str = ""
    introduced: float | None = None
    introduced_kind: str = ""
    propagated: float | None = None
    propagated_kind: str = ""
    leads: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Located:
    """Where a graph goes wrong.

    `culprit` is the operation that introduces the error; `others` introduce one too. `fusion` are operations whose
    values must not be looked at for the failure to show: it needs them in one kernel. `how` is one of `introduced`,
    `propagated`, `gradient`, `raises`, `refused` (by the model, not by the compiler), `fusion`. `unanswered`
    runs gave no answer.
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
    unanswered: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of an experiment: what was changed, and what came of it."""

    change: str
    status: Status
    kind: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel that a compiler has generated, by its own name, and the user's source lines that it is blamed for."""

    name: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Which stage of the compiler is to blame, and what in it.

    `stage` is one of dynamo, aot_autograd, decomposition, partitioner, pre_grad_passes, joint_graph_passes,
    post_grad_passes, lowerings, codegen, inductor, backend. `part` is the pass, the decomposition or the operation that
    was found there, `switch` a setting that makes the failure go away. `failing` and `passing` are the two runs that
    show it. `kernels` are those that compute the part, where the code that is written for it is wrong.
    """

    subject: str
    kind: str
    stage: str
    part: str = ""
    switch: Mapping[str, Any] = field(default_factory=dict)
    failing: Trial | None = None
    passing: Trial | None = None
    trials: tuple[Trial, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    seconds: float = 0.0

    @property
    def queries(self) -> int:
        """How many runs it took."""
        return len(self.trials)

    @property
    def unanswered(self) -> int:
        """How many of them gave no answer, so that the finding does not rest on them."""
        return sum(trial.status is Status.UNKNOWN for trial in self.trials)


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
        """DIFFERS where a pass changes the numbers, UNKNOWN where one could not be judged or none ran, else SAME."""
        found = {entry.status for entry in self.passes} or {Status.UNKNOWN}
        return next((entry for entry in (Status.DIFFERS, Status.UNKNOWN) if entry in found), Status.SAME)
