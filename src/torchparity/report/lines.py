"""The five lines that a diagnosis ends with: what differs, where, which stage, the script, the page."""

from __future__ import annotations

from torchparity.records import DONE, Diagnosis, Kind, LeafReport, Located, Status
from torchparity.report.findings import HOW, STAGES, short_line
from torchparity.report.story import listed
from torchparity.report.terminal import where_cell

PAGE = "index.html"
LONG = 240
# So many of the operations that must be compiled together are named.
FUSED = 4


def five_lines(found: Diagnosis) -> list[tuple[str, str]]:
    """Return the lines as pairs of a word and what it says; fewer where there is nothing to find."""
    what = (found.status.value.upper(), what_line(found))
    page = ("page", f"{found.folder}/{PAGE}" if found.folder else "not written (no folder was named)")
    if found.status is not Status.DIFFERS:
        return [what, page]
    return [what, ("where", where_line(found)), ("stage", stage_line(found)), ("script", script_line(found)), page]


def what_line(found: Diagnosis) -> str:
    """Say what differs: the worst leaf with its numbers, the exception, or why there is no answer."""
    against = f"{found.subject} against {found.backend}"
    verdict = found.verdict
    if verdict is None:
        notes = [stage.note for stage in found.stages if stage.note]
        return f"{against}: {notes[0] if notes else found.ended}"
    if verdict.status is not Status.DIFFERS:
        return f"{against}: {verdict.reasons[0]}" if verdict.reasons else against
    if verdict.failure is not None:
        return cut(f"{against}: {verdict.reasons[0]}")
    leaves = [leaf for leaf in verdict.leaves if leaf.status is Status.DIFFERS]
    more = f", and {len(leaves) - 1} more" if len(leaves) > 1 else ""
    return cut(f"{against}: {leaf_text(leaves[0], verdict.threshold)}{more}") if leaves else against


def leaf_text(leaf: LeafReport, threshold: float) -> str:
    """Say how a leaf differs."""
    score = max(leaf.score, leaf.aggregate_score)
    told = f" (score {score:.3g}, over {threshold:g} is no rounding)" if score > threshold else ""
    kind = leaf.kind.replace("_", " ")
    where = where_cell(leaf).removeprefix(f"{leaf.kind}: ")
    return f"{leaf.path} differs in {kind} {where}".rstrip() + told


def where_line(found: Diagnosis) -> str:
    """Name the operation and its source line, or what is known instead."""
    located = found.located
    if located is not None and located.culprit is not None:
        line = short_line(located.culprit.line)
        place = f"  {line}" if line else "  (no source line is known)"
        fused = listed((node.operation for node in located.fusion), FUSED)
        needs = f" ({fused})" if fused else ""
        return f"{located.culprit.operation} {how_text(found, located)}{needs}{place}"
    if found.graph is not None:
        return f"in graph {found.graph.name} ({found.graph.operations} operations); {unfinished(found, 'locate')}"
    if found.smallest is not None and found.smallest.program:
        return "in no graph by itself, but in the Python around them: the script is what is left of it"
    if found.ended.startswith("no graph"):
        return f"in no graph by itself; {unfinished(found, 'graph')}"
    return f"not known; {unfinished(found, 'graph')}"


def how_text(found: Diagnosis, located: Located) -> str:
    """Say what an operation does; where something raises, whether that is the compiler or what it has made."""
    failure = found.verdict.failure if found.verdict is not None else None
    ran = failure is not None and failure.stage in ("run", Kind.CRASHES.value)
    return "makes the compiled code fail" if located.how == "raises" and ran else HOW[located.how]


def stage_line(found: Diagnosis) -> str:
    """Name the stage of the compiler, the part of it, and what makes the failure go away."""
    blame = found.blame
    if blame is None:
        return unfinished(found, "blame")
    part = f": {blame.part}" if blame.part else ""
    kernel = f", kernel {blame.kernels[0].name}" if len(blame.kernels) == 1 else ""
    gone = f"  (passes {blame.passing.change})" if blame.passing is not None else ""
    return f"{STAGES.get(blame.stage, blame.stage)}{part}{kernel}{gone}"


def script_line(found: Diagnosis) -> str:
    """Name the script, its size, and how often it failed as it should."""
    small = found.smallest
    if small is None:
        return unfinished(found, "minify")
    path = f"{found.folder}/{small.script_path}" if small.script_path else "in `smallest.script`"
    again, times = small.reproduced
    shown = f"reproduced {again} of {times}" if times else "not run yet: interrupted"
    if not times and not small.plain and small.program:
        shown = "the program itself: no script of torch alone shows it"
    shown = f"does NOT reproduce: {again} of {times}" if times and not again else shown
    early = "" if small.complete else ", stopped early"
    operations = f"{small.operations} operation{'s' * (small.operations != 1)}"
    return f"{path}  ({operations} of {small.started_from['operations']}, {shown}{early})"


def unfinished(found: Diagnosis, stage: str) -> str:
    """Say why a stage has nothing to show."""
    run = next((run for run in reversed(found.stages) if run.name == stage), None)
    if run is None:
        return f"not looked for: {found.ended}" if found.ended else "not looked for"
    if run.ending == DONE:
        return f"{stage} named nothing"
    return cut(f"{run.ending}: {run.note}" if run.note else run.ending)


def cut(text: str) -> str:
    """Return text on one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= LONG else f"{line[:LONG]}…"
