"""Locate: which operation of a graph introduces the error, and which only pass it on.

One compilation with every intermediate value tapped usually tells. Where looking makes the failure go away, it needs
some operations fused: the smallest set that must stay untapped is searched by halving.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchparity.diagnosis.taps import APART_JOB, GRADIENTS_JOB, LOOK_JOB, PART_JOB, TAP_JOB
from torchparity.errors import ResourceError, UsageError
from torchparity.graphs.search import needed
from torchparity.judge.isolated import BUNDLE_JOB, describe, verdict_of
from torchparity.judge.reading import Reading, read
from torchparity.records import DrawnNode, Kind, LeafReport, Located, NodeError, Status, Verdict
from torchparity.records.wire import record_from
from torchparity.repro.bundle import read_bundle
from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool

# Kinds that a value has where it is made, and that make others wrong further on.
INTRODUCED = tuple(kind.value for kind in (Kind.DTYPE, Kind.SHAPE, Kind.NONFINITE, Kind.INTEGER, Kind.VALUE, Kind.BIAS))
ENDS = (Kind.RAISES.value, Kind.CRASHES.value, Kind.ACCEPTS_INVALID.value)


@dataclass(frozen=True, kw_only=True)
class Look:
    """The graph of a bundle as a worker saw it run, eagerly: its nodes, and what is remarkable among its operations."""

    nodes: tuple[DrawnNode, ...]
    outputs: tuple[int, ...] = ()
    raised: int | None = None

    @property
    def operations(self) -> list[DrawnNode]:
        """The nodes that compute, in order: places count these."""
        return [node for node in self.nodes if node.place is not None]


def look_at(folder: Path, pool: Pool, limits: Limits) -> Look:
    """Have a worker run the graph of a bundle once; whatever it does there, the caller goes on or hears why not."""
    outcome = pool.submit(LOOK_JOB, {"folder": str(folder.resolve())}, limits=limits).result()
    if outcome.ending is not Ending.RETURNED:
        raise ResourceError(
            f"the graph cannot be looked at: its process {describe(outcome)}",
            hint=f"`torchparity run {folder}` shows it",
        )
    return record_from(Look, outcome.value)


def tapped_whole(folder: Path, pool: Pool, limits: Limits) -> Future[Outcome]:
    """Have a worker compile the graph of a bundle with every intermediate value tapped."""
    return pool.submit(TAP_JOB, {"folder": str(folder.resolve()), "untapped": []}, limits=limits)


class Search:
    """One search for the operation that is to blame in a bundle: asks in workers, and counts what was compiled.

    `verdict` is the one on the case as it is, and `look` its graph, where these are known already; `tapped` is the
    first question, where it was asked before.
    """

    def __init__(
        self,
        folder: Path,
        pool: Pool,
        *,
        limits: Limits,
        listen: Callable[[str], None] | None = None,
        verdict: Verdict | None = None,
        look: Look | None = None,
        tapped: Future[Outcome] | None = None,
    ) -> None:
        self.folder, self.pool, self.listen, self.verdict = folder.resolve(), pool, listen, verdict
        self.tapped = tapped
        self.case = read_bundle(folder)
        self.limits = limits
        self.look = look or look_at(folder, pool, limits)
        self.compute = self.look.operations
        self.compiles = self.unanswered = 0
        self.began, self.seconds = time.monotonic(), 0.0

    def run(self) -> Located:
        """Name the operation: at once where one compilation tells, else with many."""
        return self.at_once() or self.closely()

    def at_once(self) -> Located | None:
        """Tap everything: one compilation. None where that does not tell."""
        with self.timed():
            if self.look.raised is not None:
                return self.found("refused", self.look.raised, self.whole())
            if self.verdict is not None and self.verdict.kind in ENDS:
                return None
            if self.verdict is not None and only_gradients(self.verdict):
                located = self.in_gradients(self.verdict)
                return located if located.culprit is not None else None
            verdict, introduced = self.tap(())
            if verdict.kind in ENDS:
                return None
            nodes = self.errors(verdict, introduced)
            if any(node.propagated_kind or node.introduced_kind in INTRODUCED for node in nodes):
                return self.told(nodes, verdict)
            return None

    def closely(self, near: Path | None = None) -> Located:
        """Look for what taps do not show: many compilations, few where a small case of the same failure is there."""
        with self.timed():
            places = self.places_of(near) if near is not None else []
            whole = self.whole()
            if whole.kind in ENDS:
                return self.found("raises", self.first_to_raise(whole, places), whole)
            if places:
                return self.in_small(whole, places, "gradient" if only_gradients(whole) else "fusion")
            return self.in_gradients(whole) if only_gradients(whole) else self.in_fusion(whole)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time."""
        self.began = time.monotonic() - self.seconds
        try:
            yield
        finally:
            self.seconds = time.monotonic() - self.began

    def places_of(self, small: Path) -> list[list[int]]:
        """Return for each operation of a smaller case which it may have been: those of the same name and line."""
        places: dict[tuple[str, str], list[int]] = {}
        for place, node in enumerate(self.compute):
            places.setdefault((node.operation, node.line), []).append(place)
        smaller = look_at(small, self.pool, self.limits).operations
        kept = dict.fromkeys((node.operation, node.line) for node in smaller)
        return [places[key] for key in kept if key in places]

    # --- asking ------------------------------------------------------------------------------------------

    def ask(self, job: str, what: str, **payload: Any) -> tuple[Verdict, dict[str, Any]]:
        """Compile and judge in a worker; a crash there is an answer like any other."""
        return self.answer(self.begin(job, what, **payload))

    def begin(self, job: str, what: str, **payload: Any) -> Future[Outcome]:
        """Have a worker compile and judge."""
        if self.listen is not None:
            self.listen(f"compilation {self.compiles + 1}: {what}")
        self.compiles += 1
        return self.pool.submit(job, {"folder": str(self.folder), **payload}, limits=self.limits)

    def answer(self, asked: Future[Outcome]) -> tuple[Verdict, dict[str, Any]]:
        """Wait for what a worker found: the verdict, and everything else that it answered."""
        outcome = asked.result()
        verdict = verdict_of(outcome, subject=self.case.name, backend=self.case.recipe.backend_name())
        self.unanswered += verdict.status is Status.UNKNOWN
        return verdict, outcome.value if outcome.ending is Ending.RETURNED else {}

    def tap(self, untapped: Sequence[int]) -> tuple[Verdict, dict[str, Any]]:
        """Ask about every intermediate value at once, but for some."""
        shown = len(self.compute) - len(untapped)
        what = f"{shown} of {len(self.compute)} values tapped"
        if self.tapped is not None and not untapped:
            self.compiles += 1
            verdict, facts = self.answer(self.tapped)
        else:
            verdict, facts = self.ask(TAP_JOB, what, untapped=list(untapped))
        return verdict, facts.get("introduced", {})

    def whole(self) -> Verdict:
        """Return the verdict on the case as it is; refuse one that does not fail."""
        if self.verdict is None:
            self.verdict, _ = self.ask(BUNDLE_JOB, "the case as it is")
        verdict = self.verdict
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
                    leads=own.get("leads") if own is not None else None,
                    propagated=max(leaf.score, leaf.aggregate_score) if leaf is not None else None,
                    propagated_kind=leaf.kind if leaf is not None and leaf.status is Status.DIFFERS else "",
                )
            )
        return made

    def node(self, place: int, **errors: Any) -> NodeError:
        """Return an operation with what is known of it."""
        node = self.compute[place]
        return NodeError(place=place, name=node.name, operation=node.operation, line=node.line, **errors)

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
            unanswered=self.unanswered,
            seconds=time.monotonic() - self.began,
            **more,
        )

    # --- what taps do not show ---------------------------------------------------------------------------

    def in_gradients(self, whole: Verdict) -> Located:
        """Every distinct operation by itself, backwards; then the gradients of all values. One or two compilations."""
        verdict, _ = self.ask(APART_JOB, "every operation by itself, with its gradient")
        places = [int(leaf.path.split()[1]) for leaf in wrong_leaves(verdict) if leaf.path.startswith("node ")]
        if not places:
            _, facts = self.ask(GRADIENTS_JOB, "the gradients of all values")
            places = facts.get("behind", [])
        return self.found("gradient", places[0] if places else None, whole)

    def in_small(self, whole: Verdict, near: list[list[int]], how: str) -> Located:
        """Name the last operation of a small case, which needs all of the others. Nothing is compiled."""
        *rest, last = sorted(same[0] for same in near)
        fused = tuple(self.node(place) for place in rest)
        return self.located(how if rest or how == "gradient" else "introduced", self.node(last), whole, fusion=fused)

    def in_fusion(self, whole: Verdict) -> Located:
        """Find the smallest set of values that must not be looked at for the failure to show."""
        places = [place for place in range(len(self.compute)) if place not in self.look.outputs]
        seen: dict[tuple[int, ...], tuple[Verdict, dict[str, Any]]] = {}

        def fails(untapped: list[int]) -> bool:
            key = tuple(sorted(untapped))
            if key not in seen:
                seen[key] = self.tap(key)
            return seen[key][0].status is Status.DIFFERS and seen[key][0].kind not in ENDS

        if not fails(places):
            return self.found("fusion", None, whole)
        hidden = tuple(sorted(needed(places, fails)))
        fails(list(hidden))
        verdict, introduced = seen[hidden]
        return self.told(self.errors(verdict, introduced), verdict, fusion=hidden)

    def first_to_raise(self, verdict: Verdict, near: list[list[int]]) -> int | None:
        """Return the operation after which the compiler no longer accepts the graph.

        Two compilations where one that is near is the first; else the graph is cut into as many parts as there are
        workers, and one more, again and again.
        """
        if not self.compute:
            return None
        low, high = 0, len(self.compute)
        last = max((same[0] for same in near), default=None)  # With it, all that are near have been seen.
        cuts = [last, last + 1] if last is not None else []
        while high - low > 1:
            cuts = [cut for cut in cuts if low < cut < high] or cuts_between(low, high, self.pool.workers)
            asked = [
                (cut, self.begin(PART_JOB, f"the first {cut} of {len(self.compute)} operations", count=cut))
                for cut in cuts
            ]
            answers = {cut: self.answer(future)[0] for cut, future in asked}
            fails = {cut: read(it.status, it.kind, verdict.kind) is Reading.FAILS for cut, it in answers.items()}
            high = min([high, *(cut for cut in cuts if fails[cut])])
            low = max([low, *(cut for cut in cuts if cut < high)])
            cuts = []
        return high - 1


def cuts_between(low: int, high: int, count: int) -> list[int]:
    """Return places that cut a range into equal parts. (0, 9, 2) -> [3, 6]; (0, 2, 2) -> [1]."""
    return sorted({low + (high - low) * number // (count + 1) for number in range(1, count + 1)} - {low})


def severity(node: NodeError) -> tuple[bool, float, int]:
    """Order operations: those that lead to the failure, wrong in more than number, then by how much they introduce."""
    whole = node.introduced_kind not in (Kind.VALUE.value, Kind.BIAS.value)
    return (node.leads is False, float("-inf") if whole else -(node.introduced or 0.0), node.place)


def only_gradients(verdict: Verdict) -> bool:
    """Tell whether all that differs are gradients."""
    wrong = list(wrong_leaves(verdict))
    return bool(wrong) and all(leaf.role == "gradient" for leaf in wrong)


def wrong_leaves(verdict: Verdict) -> Iterator[LeafReport]:
    """Yield the leaves that differ, the worst first."""
    return (leaf for leaf in verdict.leaves if leaf.status is Status.DIFFERS)
