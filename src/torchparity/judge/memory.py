"""What a candidate does with memory that is not its own: it writes beside its tensors, or over what it returned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchparity import torchapi
from torchparity.compare.expectation import Comparison
from torchparity.judge import reasons
from torchparity.judge.appeals import CandidateRun
from torchparity.judge.holding import Held
from torchparity.records import Kind, LeafReport, Mismatch, Status
from torchparity.run.step import Ending
from torchparity.run.zones import ZONE, Breach, Zones

if TYPE_CHECKING:
    from torchparity.judge.oracle import Oracle

# Where a kernel that writes past its tensor is no crash: an allocator keeps large blocks and hands out parts of them.
ZONED_DEVICES = ("cuda",)
# Who says so: torch's own CUDA graphs write to the same memory at every replay, and an output is to be cloned.
REUSING = ("inductor", "cudagraphs")
# How often eager is run at most, where a candidate does something to what it returned before.
RUNS = 16


def look_at_memory(oracle: Oracle, candidates: list[CandidateRun]) -> None:
    """Add to the reports of a candidate's runs what it does with memory."""
    found = written_over(oracle, candidates[-1].comparison.reports)
    if is_zoned(oracle):
        found += breaches(oracle, candidates)
    for entry in candidates:
        entry.comparison.reports.update({report.path: report for report in found})


def written_over(oracle: Oracle, reports: dict[str, LeafReport]) -> list[LeafReport]:
    """Return the outputs that a later call writes over, or whose memory it gives out, where eager does not do so."""
    if torchapi.is_distributed() or reuses(oracle):
        return []
    held = oracle.held
    told = {path: reasons.changes_later() for path in sorted(held.look_again()) if path in reports}
    told |= {path: reasons.given_out_again(path, other) for path, other in held.shared.items() if path in reports}
    if not told:
        return []
    eager = Held()
    for _ in range(RUNS):  # A model may have several buffers of its own, and give them out in turn.
        oracle.ground.announce("eager again")
        with torchapi.eagerly():
            ending = oracle.ground.runner.run(oracle.subject.model, eager.hear)
        if ending.failure is not None:
            return []
        if eager.calls >= held.calls:
            break
    excused = eager.look_again() | eager.shared.keys()
    return [
        with_mismatch(reports[path], Mismatch(kind=Kind.MUTATION, detail=detail))
        for path, detail in told.items()
        if path not in excused
    ]


def reuses(oracle: Oracle) -> bool:
    """Tell whether a candidate may write over what it returned before."""
    return oracle.recorded and oracle.candidate.name in REUSING


def with_mismatch(report: LeafReport, mismatch: Mismatch) -> LeafReport:
    """Return a report of a leaf that differs in one more way."""
    return replace(report, status=Status.DIFFERS, mismatches=(*report.mismatches, mismatch))


def is_zoned(oracle: Oracle) -> bool:
    """Tell whether one more run lies between red zones; what is recorded may not lie anywhere else."""
    settings = oracle.settings
    on_its_own_data = not (settings.on_exact_data or settings.on_other_data)
    on_device = oracle.ground.runner.device.type in ZONED_DEVICES and not torchapi.is_distributed()
    return on_device and on_its_own_data and oracle.candidate.traces and not oracle.recorded


def breaches(oracle: Oracle, candidates: list[CandidateRun]) -> list[LeafReport]:
    """Run the candidate between red zones; return beside what it writes. Nothing else of that run is judged."""
    ground = oracle.ground
    generated_only = oracle.candidate.name == "inductor"
    zones, ending = run_between(oracle, factories=not generated_only)
    if ending.failure is not None and not ending.lost and not generated_only:
        zones, ending = run_between(oracle, factories=False)
    if ending.lost:
        candidates.append(CandidateRun(Comparison({}), {}, ending.failure, lost=True))
        return []
    if ending.failure is not None:
        ground.notes.append(reasons.not_between_zones(ending.failure))
    found = [breach_report(breach) for breach in zones.breaches()]
    if found:
        ground.notes.insert(0, reasons.out_of_bounds([report.path for report in found], found[0].mismatches[0].detail))
    return found


def run_between(oracle: Oracle, *, factories: bool) -> tuple[Zones, Ending]:
    """Run the candidate once between red zones."""
    zones, ground, built = Zones(), oracle.ground, oracle.built
    assert built is not None
    name = f"{oracle.candidate.name} between red zones"
    ground.announce(name, candidate=True)
    with oracle.candidate.active(), torchapi.allocating(zones.allocator, factories=factories):
        ending = ground.runner.run(built, lambda leaf: None, patience=ground.patience, zones=zones)
    ground.record(name, ending)
    return zones, ending


def breach_report(breach: Breach) -> LeafReport:
    """Return a breach as a leaf that differs."""
    sides = [
        f"{distance} bytes {side} it{' or more' if distance == ZONE else ''}"
        for side, distance in (("before", breach.before), ("after", breach.after))
        if distance
    ]
    return outside_report(breach.name, f"a kernel writes up to {' and '.join(sides)}")


def outside_report(name: str, detail: str) -> LeafReport:
    """Return an access outside of some memory as a leaf that differs."""
    report = LeafReport(path=f"bounds.{name}", role="memory", status=Status.SAME, dtype="", shape=())
    return with_mismatch(report, Mismatch(kind=Kind.OUT_OF_BOUNDS, detail=detail))
