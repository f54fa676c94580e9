"""Locate: which operation of a graph introduces the error, and which only pass it on.

One compilation with every intermediate value tapped usually tells. Where looking makes the failure go away, it needs
some operations fused: the smallest set that must stay untapped is searched by halving.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.fx import Node

from torchparity.diagnosis.taps import APART_JOB, PART_JOB, TAP_JOB, opened
from torchparity.errors import UsageError
from torchparity.execute.isolated import BUNDLE_JOB, verdict_of
from torchparity.execute.outcome import Ending, Limits
from torchparity.execute.pool import Pool
from torchparity.graphs.search import needed
from torchparity.records import Kind, LeafReport, Located, NodeError, Status, Verdict
from torchparity.repro.bundle import write_bundle
from torchparity.repro.case import Case
from torchparity.repro.source import line_of, operation_name

# Kinds that a value has where it is made, and that make others wrong further on.
INTRODUCED = tuple(kind.value for kind in (Kind.DTYPE, Kind.SHAPE, Kind.NONFINITE, Kind.INTEGER, Kind.VALUE, Kind.BIAS))
ENDS = (Kind.RAISES.value, Kind.CRASHES.value, Kind.ACCEPTS_INVALID.value)
SECONDS = 600.0

Listener = Callable[[str], None]


def locate(
    case: Case, *, pool: Pool | None = None, limits: Limits | None = None, listen: Listener | None = None
) -> Located:
    """Return which operation of a case introduces its error."""
    with (
        tempfile.TemporaryDirectory(prefix="torchparity-") as name,
        contextlib.nullcontext(pool) if pool is not None else Pool(workers=1) as workers,
    ):
        folder = write_bundle(case, Path(name) / "case")
        return Search(case, folder, workers, limits or Limits(seconds=SECONDS), listen).run()


class Search:
    """One search for the operation that is to blame: asks in workers, and counts what was compiled."""

    def __init__(self, case: Case, folder: Path, pool: Pool, limits: Limits, listen: Listener | None) -> None:
        self.case, self.folder, self.pool, self.limits, self.listen = case, folder, pool, limits, listen
        extractor, _, _ = opened(case)
        self.compute: list[Node] = extractor.compute
        self.raised = extractor.recording.raised
        self.outputs = {node for node in extractor.output.all_input_nodes if node in set(self.compute)}
        self.compiles = 0
        self.began = time.monotonic()

    def run(self) -> Located:
        """Tap everything; where that hides the failure, look for what must not be looked at."""
        if self.raised is not None:
            return self.found("raises", self.compute.index(self.raised), self.whole())
        verdict, introduced = self.tap(())
        if verdict.kind in ENDS:
            return self.found("raises", self.first_to_raise(verdict), verdict)
        nodes = self.errors(verdict, introduced)
        if any(node.propagated_kind or node.introduced_kind in INTRODUCED for node in nodes):
            return self.told(nodes, verdict)
        whole = self.whole()
        if whole.kind in ENDS:
            return self.found("raises", self.first_to_raise(whole), whole)
        if all(leaf.role == "gradient" for leaf in whole.leaves if leaf.status is Status.DIFFERS):
            return self.in_gradients(whole)
        return self.in_fusion(whole)

    # --- asking ------------------------------------------------------------------------------------------

    def ask(self, job: str, what: str, **payload: Any) -> tuple[Verdict, dict[str, Any]]:
        """Compile and judge in a worker; a crash there is an answer like any other."""
        if self.listen is not None:
            self.listen(f"compilation {self.compiles + 1}: {what}")
        self.compiles += 1
        payload = {"folder": str(self.folder), **payload}
        outcome = self.pool.submit(job, payload, limits=self.limits).result()
        verdict = verdict_of(outcome, subject=self.case.name, backend=self.case.recipe.backend_name())
        value = outcome.value if outcome.ending is Ending.RETURNED else {}
        return verdict, value.get("introduced", {})

    def tap(self, untapped: Sequence[int]) -> tuple[Verdict, dict[str, Any]]:
        """Ask about every intermediate value at once, but for some."""
        shown = len(self.compute) - len(untapped)
        return self.ask(TAP_JOB, f"{shown} of {len(self.compute)} values tapped", untapped=list(untapped))

    def whole(self) -> Verdict:
        """Ask about the case as it is; refuse one that does not fail."""
        verdict, _ = self.ask(BUNDLE_JOB, "the case as it is")
        if verdict.status is not Status.DIFFERS:
            raise UsageError(
                f"{self.case.name} does not fail here: {verdict.status.value}",
                hint="`torchparity run` shows the verdict; there is nothing to locate",
            )
        return verdict

    # --- telling -----------------------------------------------------------------------------------------

    def errors(self, verdict: Verdict, introduced: dict[str, Any]) -> list[NodeError]:
        """Return what is known of every operation."""
        leaves: dict[str, LeafReport] = {}
        for report in verdict.leaves:  # The worst first.
            leaves.setdefault(report.path, report)
        made = []
        for place in range(len(self.compute)):
            leaf, own = leaves.get(f"node {place}"), introduced.get(str(place))
            wrong = own is not None and own["status"] == Status.DIFFERS.value
            judged = own is not None and own["status"] != Status.UNKNOWN.value
            made.append(
                self.node(
                    place,
                    introduced=own["score"] if own is not None and judged else None,
                    introduced_kind=own["kind"] if own is not None and wrong else "",
                    propagated=max(leaf.score, leaf.aggregate_score) if leaf is not None else None,
                    propagated_kind=leaf.kind if leaf is not None and leaf.status is Status.DIFFERS else "",
                )
            )
        return made

    def node(self, place: int, **errors: Any) -> NodeError:
        """Return an operation with what is known of it."""
        node = self.compute[place]
        return NodeError(place=place, name=node.name, operation=operation_name(node), line=line_of(node), **errors)

    def told(self, nodes: list[NodeError], verdict: Verdict, fusion: Sequence[int] = ()) -> Located:
        """Name the operation that introduces most; where none stands out, the first whose result is wrong."""
        wrong = sorted((node for node in nodes if node.introduced_kind in INTRODUCED), key=severity)
        how = "introduced"
        if not wrong:
            how = "propagated"
            wrong = [node for node in nodes if node.propagated_kind in INTRODUCED]
            wrong = wrong or [node for node in nodes if node.propagated_kind]
        return self.located(
            "fusion" if fusion else how,
            wrong[0] if wrong else None,
            verdict,
            others=tuple(wrong[1:]) if how == "introduced" else (),
            nodes=tuple(nodes),
            fusion=tuple(nodes[place] for place in fusion),
        )

    def found(self, how: str, place: int | None, verdict: Verdict) -> Located:
        """Name one operation, and nothing about the others."""
        return self.located(how, self.node(place) if place is not None else None, verdict)

    def located(self, how: str, culprit: NodeError | None, verdict: Verdict, **more: Any) -> Located:
        """Return the finding."""
        return Located(
            subject=self.case.name,
            kind=(culprit.introduced_kind or culprit.propagated_kind or verdict.kind) if culprit else verdict.kind,
            how=how,
            culprit=culprit,
            threshold=verdict.threshold,
            compiles=self.compiles,
            seconds=time.monotonic() - self.began,
            **more,
        )

    # --- what taps do not show ---------------------------------------------------------------------------

    def in_gradients(self, whole: Verdict) -> Located:
        """Every distinct operation by itself, backwards: whose gradient is wrong? One compilation."""
        verdict, _ = self.ask(APART_JOB, "every operation by itself, with its gradient")
        owner = next(
            (int(leaf.path.split()[1]) for leaf in wrong_leaves(verdict) if leaf.path.startswith("node ")), None
        )
        return self.found("gradient", owner, whole)

    def in_fusion(self, whole: Verdict) -> Located:
        """Find the smallest set of values that must not be looked at for the failure to show."""
        places = [place for place, node in enumerate(self.compute) if node not in self.outputs]
        seen: dict[tuple[int, ...], tuple[Verdict, dict[str, Any]]] = {}

        def fails(untapped: list[int]) -> bool:
            key = tuple(sorted(untapped))
            if key not in seen:
                seen[key] = self.tap(key)
            return seen[key][0].status is Status.DIFFERS

        if not fails(places):
            return self.found("fusion", None, whole)
        hidden = tuple(sorted(needed(places, fails)))
        fails(list(hidden))
        verdict, introduced = seen[hidden]
        return self.told(self.errors(verdict, introduced), verdict, fusion=hidden)

    def first_to_raise(self, verdict: Verdict) -> int | None:
        """Return the operation after which the compiler no longer accepts the graph. About log2(n) compilations."""
        low, high = 0, len(self.compute)
        while high - low > 1:
            middle = (low + high) // 2
            part, _ = self.ask(PART_JOB, f"the first {middle} of {len(self.compute)} operations", count=middle)
            low, high = (low, middle) if part.kind == verdict.kind else (middle, high)
        return high - 1


def severity(node: NodeError) -> tuple[float, int]:
    """Order operations: those that are wrong in more than number first, then by how much they introduce."""
    whole = node.introduced_kind not in (Kind.VALUE.value, Kind.BIAS.value)
    return (float("-inf") if whole else -(node.introduced or 0.0), node.place)


def wrong_leaves(verdict: Verdict) -> Iterator[LeafReport]:
    """Yield the leaves that differ, the worst first."""
    return (leaf for leaf in verdict.leaves if leaf.status is Status.DIFFERS)
