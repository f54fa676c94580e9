"""One investigation from end to end, as records: what its page, its five lines and its JSON are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchparity.records.findings import Blame, Located
from torchparity.records.story import Story
from torchparity.records.verdict import Status, Verdict

# The stages of a diagnosis, in their order.
STAGES = ("check", "story", "graph", "minify", "locate", "blame")
# How a stage ended.
DONE, SKIPPED, STOPPED, NOTHING = "done", "skipped", "stopped", "found nothing"


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """One stage of a diagnosis: how it ended, how long it took, and why where that needs a word."""

    name: str
    ending: str
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class StageProgress:
    """Where a diagnosis is: the stage, what it is doing, and about how many seconds are left of the whole."""

    stage: str
    number: int
    stages: int
    doing: str
    left: float | None = None


@dataclass(frozen=True, kw_only=True)
class DrawnNode:
    """One node of a graph as it is drawn: what it does, from which nodes, and what it gave in eager.

    `place` is its place among the operations, as a `NodeError` has it; None for inputs and results.
    """

    name: str
    role: str
    operation: str = ""
    code: str = ""
    line: str = ""
    value: str = ""
    sample: str = ""
    inputs: tuple[int, ...] = ()
    place: int | None = None


@dataclass(frozen=True, kw_only=True)
class FailingGraph:
    """The graph that fails: which of the model's it is, and its picture."""

    name: str
    level: str
    direction: str
    operations: int
    inputs: int
    kind: str
    nodes: tuple[DrawnNode, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Query:
    """One question of a minification: how large the part was, whether it failed alike, whether it was adopted."""

    number: int
    operations: int
    stage: str
    fails: bool | None
    adopted: bool = False


@dataclass(frozen=True, kw_only=True)
class Smallest:
    """The smallest script that still fails, and what finding it took.

    `program` tells that it is what is left of the model's own Python, and not of a graph.
    """

    operations: int
    inputs: int
    started_from: Mapping[str, Any]
    script: str
    script_path: str
    output: str
    title: str
    plain: bool
    reproduced: tuple[int, int]
    queries: int
    seconds: float
    complete: bool
    unanswered: int = 0
    failure: str = ""
    program: bool = False
    others: tuple[str, ...] = ()
    curve: tuple[Query, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that one investigation found, as far as it came. `ended` says where and why it ended.

    `notes` tell what could not be looked at: graphs that could not be written down.
    """

    subject: str
    backend: str
    began: str
    folder: str = ""
    verdict: Verdict | None = None
    story: Story | None = None
    graph: FailingGraph | None = None
    located: Located | None = None
    smallest: Smallest | None = None
    blame: Blame | None = None
    stages: tuple[StageRun, ...] = ()
    notes: tuple[str, ...] = ()
    ended: str = ""
    interrupted: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def status(self) -> Status:
        """The verdict's; UNKNOWN where there is none."""
        return self.verdict.status if self.verdict is not None else Status.UNKNOWN

    @property
    def exit_code(self) -> int:
        """0 same, 1 differs, 125 unknown, 130 interrupted."""
        if self.interrupted:
            return 130
        return {Status.SAME: 0, Status.DIFFERS: 1, Status.UNKNOWN: 125}[self.status]


StageCallback = Callable[[StageProgress], None]
