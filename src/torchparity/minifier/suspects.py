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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Node

from torchparity.graphs.extract import Extractor
from torchparity.graphs.recording import reached
from torchparity.minifier.questions import Following, Questions, Whole
from torchparity.minifier.reduction import Suspicion
from torchparity.records import VALUES, Kind, Signature, family
from torchparity.repro.names import input_names, operation_name

# Kinds of difference that make values wrong further on.
ORIGINS = (Kind.DTYPE.value, Kind.SHAPE.value)
GRADIENT, INPUT = "grad.", "input."
NEIGHBOURHOODS = 3
NAMED = 4
# So many of the neighbourhoods of a node that is hinted at are asked about before every operation is.
EARLY = 2
# As many operations are worth a compilation of their own, where there is a worker for it.
PIECE = 16
# How many operations a stretch has: more than are usually fused, few enough to be searched.
WINDOW = 16


@dataclass(frozen=True)
class Hint:
    """What somebody else has found out about the place of the error; `ask(wait)` waits for him, or does not."""

    ask: Callable[[bool], Mapping[str, Any]] = lambda wait: {}

    def told(self, extractor: Extractor, *, wait: bool = True, introduced: bool = False) -> tuple[Node, str] | None:
        """Return the node that is named, and how it is wrong; None where there is none, or it is of another graph.

        `introduced`: only one that is wrong though what it was given is right.
        """
        told = self.ask(wait)
        if not told or not 0 <= told["place"] < len(extractor.compute) or (introduced and not told["introduced"]):
            return None
        node = extractor.compute[told["place"]]
        return (node, family(told["kind"])) if node.name == told["name"] else None


NO_HINT = Hint()


def suspicions(whole: Whole, free: int, hint: Hint = NO_HINT) -> Iterator[Suspicion]:
    """Yield small sets of nodes that may be to blame, the likeliest first, each with the failure that is meant.

    `free` workers look for what is wrong by itself while the whole case may still be asked about. Whoever looks for the
    place of the error anyway gives a `hint`, which saves a question about every value, and where it is there already
    the questions about every operation.
    """
    questions = whole.questions
    extractor = questions.workshop.extractor
    raised = extractor.recording.raised
    if raised is None and whole.looks_inside and whole.expected in (None, *VALUES):
        early = hint.told(extractor, wait=False, introduced=True) if whole.expected is not None else None
        if early is not None and early[1] in (*VALUES, *ORIGINS):
            asker = Following(questions, Signature(kind=early[1]))
            for nodes in itertools.islice(neighbourhoods(extractor, [early[0]]), EARLY):
                yield Suspicion(nodes=nodes, asker=asker)
        yield from alone(questions, extractor, free, hint)
    follower = whole.follower()
    kind = follower.signature.kind
    if raised is not None:
        yield from (Suspicion(nodes=nodes, asker=follower) for nodes in neighbourhoods(extractor, [raised]))
    elif not whole.looks_inside:
        return
    elif kind in (Kind.RAISES.value, Kind.CRASHES.value):
        for node in named_nodes(extractor, whole.answer().clue):
            yield Suspicion(nodes=[node], asker=follower)
    elif only_gradients(whole):
        found = hint.told(extractor)
        behind = [found[0]] if found is not None else wrong_gradients(questions, extractor, followed(kind))
        yield from (Suspicion(nodes=nodes, asker=follower) for nodes in neighbourhoods(extractor, behind))
        yield from windows(follower, extractor)
    else:
        if kind == Kind.MUTATION.value:
            written = writers(extractor, [path for path, wrong in whole.answer().wrong if wrong == kind])
            yield from (Suspicion(nodes=nodes, asker=follower) for nodes in written)
        found = hint.told(extractor)
        known = found is not None and found[1] in (*followed(kind), *ORIGINS)
        first = found if known else first_wrong(questions, extractor, followed(kind))
        if first is not None:
            # What is wrong there is the failure where it begins, so that is followed, unless it leads nowhere.
            beginning = Following(questions, Signature(kind=first[1]), follower.repeats)
            yield from (Suspicion(nodes=nodes, asker=beginning) for nodes in neighbourhoods(extractor, [first[0]]))
        yield from windows(follower, extractor)


def writers(extractor: Extractor, wrong: Sequence[str]) -> Iterator[Sequence[Node]]:
    """Yield who writes to the inputs that end up wrong: one by one, then all who write to one of them."""
    names = input_names(extractor.graph_module)
    for given, name in names.items():
        if f"{INPUT}{name}" in wrong:
            writing = extractor.recording.overwritten.get(given, set())
            found = [node for node in extractor.compute if node in writing]
            yield from ([node] for node in found[:NAMED])
            if len(found) > 1:
                yield found


def alone(questions: Questions, extractor: Extractor, free: int, hint: Hint = NO_HINT) -> Iterator[Suspicion]:
    """Yield the nodes that are wrong by themselves, one of each kind of mistake; the whole case need not be asked.

    Its answer may still be on the way: then what is followed is only believed to be its failure. Where several
    operations are wrong, not all of them may reach an output: who is hinted at comes first.
    """
    seen: set[tuple[str, str]] = set()
    wrong = wrong_alone(questions, extractor, free)
    told = {(operation_name(node), kind) for node, kind in wrong}
    found = hint.told(extractor) if len({name for name, kind in told if kind in VALUES}) > 1 else None
    if found is not None:
        wrong.sort(key=lambda entry: operation_name(entry[0]) != operation_name(found[0]))
    for node, kind in wrong:
        # A wrong dtype or shape makes values wrong further on; where several are odd, locate tells which of them leads.
        leads = kind in VALUES or (kind in ORIGINS and len(told) == 1)
        if not leads or (operation_name(node), kind) in seen or len(seen) == NAMED:
            continue
        seen.add((operation_name(node), kind))
        yield Suspicion(nodes=[node], asker=Following(questions, Signature(kind=kind)))


def wrong_alone(questions: Questions, extractor: Extractor, free: int) -> list[tuple[Node, str]]:
    """Ask about every distinct operation by itself, in a few pieces at once; return the wrong ones, the worst first."""
    distinct = extractor.distinct()
    pieces = max(1, min(free, len(distinct) // PIECE))
    cuts = [extractor.apart(distinct[place::pieces]) for place in range(pieces)]
    answers = [future.result() for future in [questions.inquire(cut.part) for cut in cuts]]
    if any(answer.repeats[0] < answer.repeats[1] for answer in answers):
        return []
    wrong = [
        [(cut.owners[path], kind) for path, kind in answer.wrong if path in cut.owners]
        for cut, answer in zip(cuts, answers, strict=True)
    ]
    return [entry for worst in itertools.zip_longest(*wrong) for entry in worst if entry is not None]


def only_gradients(whole: Whole) -> bool:
    """Tell whether all that is wrong are gradients."""
    wrong = whole.answer().wrong
    return bool(wrong) and all(path.startswith(GRADIENT) for path, _ in wrong)


def wrong_gradients(questions: Questions, extractor: Extractor, kinds: Sequence[str]) -> list[Node]:
    """Ask about the gradients of every intermediate value; return the operations behind the first that is wrong."""
    tapped = extractor.gradients_tapped()
    wrong = questions.inquire(tapped.part).result().wrong
    return tapped.where_it_begins(path for path, kind in wrong if kind in kinds)


def followed(kind: str) -> tuple[str, ...]:
    """Return the kinds of difference that count as the failure."""
    return VALUES if kind in VALUES else (kind,)


def windows(follower: Following, extractor: Extractor) -> Iterator[Suspicion]:
    """Yield the stretches of the graph that fail by themselves; two ways of cutting it, so that no cut hides all."""
    if len(extractor.compute) <= 2 * WINDOW:
        return
    kinds = followed(follower.signature.kind)
    cuts = [extractor.windows(WINDOW, offset=offset) for offset in (0, WINDOW // 2)]
    asked = [follower.questions.inquire(cut.part) for cut in cuts]
    for cut, answer in zip(cuts, asked, strict=True):
        wrong = [cut.owners[path] for path, kind in answer.result().wrong if path in cut.owners and kind in kinds]
        yield from (Suspicion(nodes=nodes, asker=follower) for nodes in wrong[:1])


def first_wrong(questions: Questions, extractor: Extractor, follows: Sequence[str]) -> tuple[Node, str] | None:
    """Ask about every intermediate value at once; return the first node whose value is wrong, and how it is."""
    tapped = extractor.tapped()
    part = replace(tapped.part, setting=replace(questions.workshop.setting, backward=False))
    wrong = dict(questions.inquire(part).result().wrong)
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
