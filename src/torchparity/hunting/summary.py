"""What a campaign has found, as one record: from the store alone, at any moment, while it goes on too."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchparity.hunting.delivery import BUGS, ISSUE, SINCE
from torchparity.hunting.roots import Known, read_known
from torchparity.hunting.store import LIKELY, SETTLED, UNSHOWN, Bug, Find, Store
from torchparity.hunting.templates import PAIR, TEMPLATES, UNDEFINED
from torchparity.records import (
    HuntBucket,
    HuntBug,
    HuntFind,
    HuntForm,
    HuntReason,
    HuntSummary,
    HuntVariant,
    Severity,
    Status,
)
from torchparity.records.strangers import read_json, read_text

ERROR = "error"
# Nothing stored for so many seconds: the hunt stood still. A batch, at its limit, takes less.
PAUSE = 20 * 60.0
# Spans of time that a reader knows, in minutes, and how many of them fit on a chart.
SPANS = (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 1440)
MOST_BUCKETS = 60
SHOWN_SEEDS = 5


def summary_of(store: Store, *, known: Sequence[Known] | None = None) -> HuntSummary:
    """Return everything that a campaign has found so far; `known` tells titles of bugs that are known upstream."""
    programs, finds, bugs = store.programs(), store.finds(), store.bugs()
    for program in programs:
        for column in ("features", "options", "left_out"):
            program[column] = json.loads(program[column])
    times = [float(program["at"]) for program in programs] + [bug.at for bug in bugs]
    began = float(store.fact("began") or min(times, default=0.0))
    clock = minutes_since(began, times)
    span = span_for(max(clock.values(), default=0.0))
    listed = read_known() if known is None else known
    return HuntSummary(
        torch=store.fact("torch"),
        began=moment(began),
        ended=moment(max(times, default=began)),
        seed=int(store.fact("seed", "0")),
        minutes=max(clock.values(), default=0.0),
        drawing=max((clock[float(program["at"])] for program in programs), default=0.0),
        statuses=dict(sorted(Counter(program["status"] for program in programs).items())),
        bucket_minutes=span,
        buckets=buckets(programs, bugs, clock, span),
        forms=forms(programs),
        variants=variants(programs),
        left_out=left_out(programs),
        bugs=tuple(sorted((told(bug, finds, store.folder, listed, clock) for bug in bugs), key=importance)),
        finds=tuple(told_find(find) for find in finds),
        unknown=reasons(programs, Status.UNKNOWN.value),
        errors=reasons(programs, ERROR),
    )


# --- time ----------------------------------------------------------------------------------------


def moment(seconds: float) -> str:
    """Return a time as text, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def minutes_since(began: float, times: Iterable[float]) -> dict[float, float]:
    """Return the minutes of hunting before each moment: a pause, as between a stop and a resumption, is no hunting."""
    spent, last, found = 0.0, began, {}
    for at in sorted(times):
        step = max(0.0, at - last)
        spent += step if step <= PAUSE else 0.0
        found[at], last = spent / 60, at
    return found


def span_for(minutes: float) -> int:
    """Return the shortest span of which not too many fill the time."""
    return next((span for span in SPANS if minutes / span <= MOST_BUCKETS), SPANS[-1])


def buckets(
    programs: Sequence[Mapping[str, Any]], bugs: Sequence[Bug], clock: Mapping[float, float], span: int
) -> tuple[HuntBucket, ...]:
    """Return what came to an end in each span of time, those in which nothing did among them."""

    def counted(times: Iterable[float]) -> Counter[int]:
        return Counter(int(clock[float(at)] // span) for at in times)

    judged = counted(program["at"] for program in programs)
    differing = counted(program["at"] for program in programs if program["status"] == Status.DIFFERS.value)
    named = counted(bug.at for bug in bugs)
    last = max([*judged, *named], default=-1)
    return tuple(
        HuntBucket(minute=place * span, programs=judged[place], finds=differing[place], bugs=named[place])
        for place in range(last + 1)
    )


# --- coverage ------------------------------------------------------------------------------------


def forms(programs: Sequence[Mapping[str, Any]]) -> tuple[HuntForm, ...]:
    """Return every form of a line, table by table, with how often it was drawn; those that never were, too."""
    lines, inside, differing = Counter[str](), Counter[str](), Counter[str]()
    for program in programs:
        lines.update(program["features"])
        inside.update(set(program["features"]))
        if program["status"] == Status.DIFFERS.value:
            differing.update(set(program["features"]))
    names = dict.fromkeys([*(template.name for template in TEMPLATES), *lines])
    names = {name: None for name in names if not name.startswith(PAIR)}
    return tuple(
        HuntForm(
            table=name.partition(":")[0],
            name=name.partition(":")[2],
            lines=lines[name],
            programs=inside[name],
            finds=differing[name],
        )
        for name in names
    )


def variants(programs: Sequence[Mapping[str, Any]]) -> tuple[HuntVariant, ...]:
    """Return every way in which programs were compiled, the most frequent first."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for program in programs:
        groups.setdefault(json.dumps(program["options"], sort_keys=True), []).append(program)
    found = [
        HuntVariant(
            options=group[0]["options"],
            programs=len(group),
            finds=sum(program["status"] == Status.DIFFERS.value for program in group),
            unknown=sum(program["status"] == Status.UNKNOWN.value for program in group),
            seconds=statistics.median(float(program["seconds"]) for program in group),
        )
        for group in groups.values()
    ]
    return tuple(sorted(found, key=lambda variant: -variant.programs))


def left_out(programs: Sequence[Mapping[str, Any]]) -> tuple[HuntReason, ...]:
    """Return why lines were thrown away as they were drawn, the most frequent reason first."""
    counts: Counter[str] = Counter()
    for program in programs:
        counts.update(program["left_out"])
    found = [
        HuntReason(text=name, count=counts[name], meaning=UNDEFINED.get(name, ""))
        for name in dict.fromkeys([*UNDEFINED, *counts])
    ]
    return tuple(sorted(found, key=lambda reason: -reason.count))


def reasons(programs: Sequence[Mapping[str, Any]], status: str) -> tuple[HuntReason, ...]:
    """Return why programs came out so, the most frequent first; reasons that differ in numbers alone are one."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for program in programs:
        if program["status"] == status:
            groups.setdefault(re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", program["reason"]), []).append(program)
    found = [
        HuntReason(
            text=group[0]["reason"] if len({program["reason"] for program in group}) == 1 else text,
            count=len(group),
            seeds=tuple(program["seed"] for program in group[:SHOWN_SEEDS]),
        )
        for text, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda reason: -reason.count))


# --- finds and bugs ------------------------------------------------------------------------------


def told_find(find: Find) -> HuntFind:
    """Return a find as a reader wants it."""
    return HuntFind(
        seed=find.seed,
        kind=str(find.answer.get("kind", "")),
        severity=str(find.answer.get("severity", "")),
        state=find.state,
        bug=find.bug,
        options=find.options,
        reasons=tuple(find.answer.get("reasons", ())),
        small=find.small,
        program=find.text,
        questions=find.questions,
        note=find.note,
    )


def told(
    bug: Bug, finds: Sequence[Find], folder: Path, known: Sequence[Known], clock: Mapping[float, float]
) -> HuntBug:
    """Return a bug with its finds, its files, and what is known of it."""
    own = [find for find in finds if find.bug == bug.name]
    verified = [find for find in own if find.state in (SETTLED, UNSHOWN)]
    entry = next((entry for entry in known if bug.known and entry.number == bug.known), None)
    first = next((find for find in verified if find.small == bug.text), verified[0] if verified else None)
    place = folder / BUGS / Path(bug.name).name
    return HuntBug(
        name=bug.name,
        kind=bug.kind,
        stage=bug.stage,
        severity=bug.severity,
        title=bug.title,
        part=bug.part,
        switch=bug.switch,
        known=bug.known,
        known_title=entry.title if entry is not None else "",
        since=since_text(place / SINCE) or (entry.since if entry is not None else ""),
        verified=len(verified),
        likely=sum(find.state == LIKELY for find in own),
        seeds=tuple(find.seed for find in verified),
        options=first.options if first is not None else {},
        program=bug.text,
        script=bug.script,
        issue=text_of(place / ISSUE),
        files=tuple(sorted(path.relative_to(folder).as_posix() for path in place.glob("*") if path.is_file())),
        minute=clock.get(bug.at, 0.0),
    )


def importance(bug: HuntBug) -> tuple[bool, int, int, str]:
    """Return what bugs are ordered by: new ones, severe ones, those with many finds first."""
    order = [severity.value for severity in Severity]
    rank = order.index(bug.severity) if bug.severity in order else -1
    return bool(bug.known), -rank, -(bug.verified + bug.likely), bug.name


def since_text(place: Path) -> str:
    """Return what `since` concluded of a bug's script, where it was asked."""
    try:
        found = read_json(place)
    except (OSError, ValueError):
        return ""
    return str(found.get("conclusion", "")) if isinstance(found, dict) else ""


def text_of(place: Path) -> str:
    """Return the text of a file; nothing where there is none."""
    try:
        return read_text(place)
    except (OSError, ValueError):
        return ""
