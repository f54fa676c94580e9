"""Where to look first: one question about the whole graph that names a node, before any search.

apart     every distinct operation once, each with the inputs that it really had     small, blind to fusion
tapped    the whole graph, every intermediate value an output                        large
gradients the whole graph, zeros added to its values: their gradients are seen       large
windows   the whole graph in short stretches, side by side                           large, for what needs fusion
clue      the operation that an error message names
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch.fx import Node

from torchparity.graphs.extract import Extractor
from torchparity.graphs.recording import reached
from torchparity.minifier.chase import Chase
from torchparity.minifier.signature import VALUES, Signature
from torchparity.records import Kind
from torchparity.repro.source import operation_name

# Kinds of difference that make values wrong further on.
ORIGINS = (Kind.DTYPE.value, Kind.SHAPE.value)
GRADIENT = "grad."
NEIGHBOURHOODS = 3
NAMED = 4
# As many operations are worth a compilation of their own, where there is a worker for it.
PIECE = 16
# How many operations a stretch has: more than are usually fused, few enough to be searched.
WINDOW = 16


def suspects(chase: Chase, extractor: Extractor) -> Iterator[Sequence[Node]]:
    """Yield small sets of nodes that may be to blame, the likeliest first."""
    raised = extractor.recording.raised
    if not chase.settled:
        if raised is None and chase.looks_inside and chase.expected in (None, *VALUES):
            yield from alone(chase, extractor)
        chase.settle()
    pinned = chase.signature
    assert pinned is not None
    if raised is not None:
        yield from neighbourhoods(extractor, [raised])
    elif not chase.looks_inside:
        return
    elif pinned.kind in (Kind.RAISES.value, Kind.CRASHES.value):
        for node in named_nodes(extractor, chase.inquire(chase.whole).result().clue):
            yield [node]
    elif in_gradients(chase):
        yield from neighbourhoods(extractor, wrong_gradients(chase, extractor))
        yield from windows(chase, extractor)
    else:
        first = first_wrong(chase, extractor)
        if first is not None:
            culprit, kind = first
            # What is wrong there is the failure where it begins, so that is followed, unless it leads nowhere.
            chase.signature = Signature(kind=kind)
            yield from neighbourhoods(extractor, [culprit])
            chase.signature = pinned
        yield from windows(chase, extractor)


def alone(chase: Chase, extractor: Extractor) -> Iterator[Sequence[Node]]:
    """Yield the nodes that are wrong by themselves, one of each kind of mistake; the whole case need not be asked.

    Its answer may still be on the way: then what is followed is only believed to be its failure (`Chase.astray`).
    """
    seen: set[tuple[str, str]] = set()
    for node, kind in wrong_alone(chase, extractor):
        if kind not in VALUES or (operation_name(node), kind) in seen or len(seen) == NAMED:
            continue
        seen.add((operation_name(node), kind))
        chase.signature = Signature(kind=kind)
        yield [node]
    chase.signature = None


def wrong_alone(chase: Chase, extractor: Extractor) -> list[tuple[Node, str]]:
    """Ask about every distinct operation by itself, in a few pieces at once; return the wrong ones, the worst first."""
    distinct = extractor.distinct()
    pieces = max(1, min(chase.free, len(distinct) // PIECE))
    cuts = [extractor.apart(distinct[place::pieces]) for place in range(pieces)]
    answers = [future.result() for future in [chase.inquire(cut.part) for cut in cuts]]
    if any(answer.repeats[0] < answer.repeats[1] for answer in answers):
        return []
    wrong = [
        [(cut.owners[path], kind) for path, kind in answer.wrong if path in cut.owners]
        for cut, answer in zip(cuts, answers, strict=True)
    ]
    return [entry for worst in itertools.zip_longest(*wrong) for entry in worst if entry is not None]


def in_gradients(chase: Chase) -> bool:
    """Tell whether all that is wrong are gradients."""
    wrong = chase.inquire(chase.whole).result().wrong
    return bool(wrong) and all(path.startswith(GRADIENT) for path, _ in wrong)


def wrong_gradients(chase: Chase, extractor: Extractor) -> list[Node]:
    """Ask about the gradients of every intermediate value; return the operations behind the first that is wrong."""
    tapped = extractor.gradients_tapped()
    kinds = followed(chase)
    return tapped.where_it_begins(path for path, kind in chase.inquire(tapped.part).result().wrong if kind in kinds)


def followed(chase: Chase) -> tuple[str, ...]:
    """Return the kinds of difference that count as the failure."""
    assert chase.signature is not None
    return VALUES if chase.signature.kind in VALUES else (chase.signature.kind,)


def windows(chase: Chase, extractor: Extractor) -> Iterator[Sequence[Node]]:
    """Yield the stretches of the graph that fail by themselves; two ways of cutting it, so that no cut hides all."""
    if len(extractor.compute) <= 2 * WINDOW:
        return
    kinds = followed(chase)
    cuts = [extractor.windows(WINDOW, offset=offset) for offset in (0, WINDOW // 2)]
    asked = [chase.inquire(cut.part) for cut in cuts]
    for cut, answer in zip(cuts, asked, strict=True):
        wrong = [cut.owners[path] for path, kind in answer.result().wrong if path in cut.owners and kind in kinds]
        yield from wrong[:1]


def first_wrong(chase: Chase, extractor: Extractor) -> tuple[Node, str] | None:
    """Ask about every intermediate value at once; return the first node whose value is wrong, and how it is."""
    tapped = extractor.tapped()
    part = replace(tapped.part, setting=replace(chase.setting, backward=False))
    wrong = dict(chase.inquire(part).result().wrong)
    follows = followed(chase)
    kinds: dict[Node, str] = {}
    for place, maker in enumerate(tapped.makers):
        kind = wrong.get(f"output[{place}]", "")
        if kind in (*follows, *ORIGINS):
            kinds.setdefault(maker, kind)
    makers = [node for node in extractor.graph_module.graph.nodes if node in kinds]
    shown = next((node for node in makers if kinds[node] in follows), None)
    if shown is None:
        return None
    # A wrong dtype or shape that leads there is where it begins; strides often differ, and lead nowhere.
    leads = reached([shown], extractor.recording.feeders)
    origin = next((node for node in makers if node in leads), shown)
    return origin, kinds[origin]


def neighbourhoods(extractor: Extractor, nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
    """Yield nodes alone, then with what feeds them, further and further up."""
    around = [node for node in nodes if node in set(extractor.compute)]
    if not around:
        return
    yield around
    for _ in range(NEIGHBOURHOODS):
        feeders = {feeder for entry in around for feeder in extractor.recording.feeders(entry)}
        wider = [entry for entry in extractor.compute if entry in feeders or entry in set(around)]
        if len(wider) == len(around):
            return
        around = wider
        yield around


def named_nodes(extractor: Extractor, text: str) -> list[Node]:
    """Return the nodes whose operation an error message names, the last named first; one of each operation."""
    found: dict[str, tuple[int, Node]] = {}
    for node in extractor.compute:
        name = operation_name(node)
        place = max((match.start() for match in re.finditer(rf"\b{re.escape(name)}\b", text)), default=-1)
        if place >= 0 and name not in found:
            found[name] = (place, node)
    return [node for _, node in sorted(found.values(), key=lambda entry: -entry[0])][:NAMED]
