"""What ranks of one job found together, or why they had to end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from torchparity.records.verdict import Status, Verdict

# Roles of leaves that a rank computes by itself, whatever the ranks do to their gradients.
OWN_ROLES = frozenset({"structure", "output", "loss"})
UNKNOWN_CODE, DIFFERS_CODE = 125, 1
DIED, SILENT, LATE, STOPPED = "died", "silent", "late", "stopped"
APART, FAILED, UNREACHABLE = "apart", "failed", "unreachable"


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
class Standing:
    """What one rank was doing when the ranks had to end: its phase, for how long, and the line that it was at.

    `trouble` is empty where the rank itself is well, and is only the victim of another.
    """

    rank: int
    phase: str = ""
    seconds: float = 0.0
    line: str = ""
    waits: bool = False
    trouble: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Why the ranks could not check to the end: the kind of trouble, and how every rank stood."""

    kind: str
    code: int
    limit: float
    standings: tuple[Standing, ...] = field(default_factory=tuple)

    @property
    def living(self) -> list[int]:
        """The ranks that may still be able to say something."""
        return [standing.rank for standing in self.standings if standing.trouble not in (DIED, SILENT)]
