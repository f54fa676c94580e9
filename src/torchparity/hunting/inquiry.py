"""From a find to a bug: seen again, made small, blamed, told from the others, shown by a script."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torchparity.hunting.delivery import Found, deliver
from torchparity.hunting.jobs import Answer, request_of, told
from torchparity.hunting.roots import Known, looks_like, name_of, program_calls, root_of, same_root, sort_of
from torchparity.hunting.store import GONE, LIKELY, NEW, SETTLED, UNSHOWN, Bug, Find, Store
from torchparity.minifier.programs import Asking, Shown
from torchparity.programs.script import HANGS
from torchparity.programs.small import Budget
from torchparity.records import Blame, Severity, Signature, Since, signatures_of
from torchparity.repro.plain import what_fails
from torchparity.run.environment import environment
from torchparity.workers.pool import Pool

# So many finds of a bug are looked into; more that look like it are counted as likely.
ENOUGH = 3
# How often a find is looked at again: what reads memory that nobody has written is wrong by chance.
AGAIN = 3
BUDGET = Budget(questions=600, seconds=420.0)


@dataclass(frozen=True, kw_only=True)
class Others:
    """Who else is asked about a bug: which stage it comes from, and since which release a script fails."""

    blame: Callable[[Path, Mapping[str, Any]], Blame | None]
    since: Callable[[Path], Since | None] = lambda _script: None


class Inquiry:
    """Settles finds, one after the other."""

    def __init__(
        self,
        store: Store,
        pool: Pool,
        others: Others,
        known: Sequence[Known],
        *,
        budget: Budget = BUDGET,
        builder: str = "",
    ) -> None:
        self.store, self.others, self.known, self.budget = store, others, known, budget
        self._scratch = tempfile.TemporaryDirectory(prefix="torchparity-hunt-")
        self._naming = threading.Lock()
        self._roots: defaultdict[tuple[str, ...], threading.Lock] = defaultdict(threading.Lock)
        self._names: set[str] = set()
        self.asking = Asking(pool, Path(self._scratch.name), builder)

    def close(self) -> None:
        """Let go of what runs, and of what was written on the way."""
        self.asking.stop()
        self._scratch.cleanup()

    def settle(self, find: Find) -> None:
        """Find out which bug a find is, and hand over what is new."""
        likely = self._likely(find)
        if likely is not None:
            self.store.settle(find.seed, LIKELY, bug=likely.name)
        elif (one_more := self._one_more(find)) is not None:
            self.store.settle(find.seed, SETTLED, bug=one_more.name)
        elif find.answer["kind"] == HANGS:
            self._name(replace(find, small=find.text), dict(find.answer), None)  # Each question would take minutes.
        else:
            self._make_small(find)

    def next_find(self, taken: Collection[int] = (), *, new: bool = False) -> Find | None:
        """Return the find to look into next, of those that nobody has taken; `new` leaves others for later.

        What looks like no bug that is known by now comes first, then the most severe, then the oldest.
        """
        return next(iter(self.waiting(taken, new=new)), None)

    def waiting(self, taken: Collection[int] = (), *, new: bool = False) -> list[Find]:
        """Return the finds that nobody has taken, in the order in which they are looked into.

        Of the `new` ones are those that look like no bug yet, and those that are counted without a question.
        """
        order = [severity.value for severity in reversed(Severity)]
        counted = Counter(find.bug for find in self.store.finds(SETTLED))
        bugs = self.store.bugs()
        ranked = []
        for find in self.store.finds(NEW):
            seen = [counted[bug.name] for bug in like(bugs, find)]
            if find.seed not in taken and (not new or not any(seen) or max(seen) >= ENOUGH):
                ranked.append((sum(seen), order.index(find.answer["severity"]), find.seed, find))
        return [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:-1])]

    def _likely(self, find: Find) -> Bug | None:
        """Return a bug that was looked into often enough, and of which this is likely one more."""
        counted = Counter(other.bug for other in self.store.finds(SETTLED))
        return next((bug for bug in like(self.store.bugs(), find) if counted[bug.name] >= ENOUGH), None)

    def _one_more(self, find: Find) -> Bug | None:
        """Return the bug of which a find is one more: it looks like it, and the same part of the compiler is to blame.

        A few runs tell that of the program as it is; to make it small first takes many more.
        """
        alike = like(self.store.bugs(), find) if find.answer["kind"] != HANGS else []
        blame = self.others.blame(self._written(find, find.text), dict(find.options)) if alike else None
        if blame is None or not blame.part:
            return None
        root = root_of(find.answer["kind"], blame, find.text, find.answer["signatures"][0])
        return next((bug for bug in alike if same_root(bug, root)), None)

    def _make_small(self, find: Find) -> None:
        request, pinned = request_of(dict(find.options)), signature_of(find.answer)
        for _ in range(AGAIN):
            again = self.asking.verdict(find.text, request)
            if again is not None and pinned in signatures_of(again):
                break
        else:
            seen = again.status.value if again is not None else "it does not run"
            self.store.settle(find.seed, GONE, note=f"not seen again in {AGAIN} runs: {seen}")
            return
        options = self._plainer(find.text, dict(find.options), pinned)
        request = request_of(options)
        smaller = self.asking.make_small(find.text, request, [pinned], self.budget)
        small, verdict = find.text, again
        if smaller is not None:
            options = self._plainer(smaller.text, options, pinned)
            answered = self.asking.verdict(smaller.text, request_of(options))
            if answered is not None:
                small, verdict = smaller.text, answered
        questions = smaller.questions if smaller is not None else 0
        self.store.settle(find.seed, find.state, small=small, questions=questions)
        found = replace(find, small=small, questions=questions, options=options)
        self._name(found, told(verdict), self.others.blame(self._written(found, small), options))

    def _plainer(self, text: str, options: dict[str, Any], pinned: Signature) -> dict[str, Any]:
        """Return as few of the options as a program still fails with: none at all, or all but one, again and again."""
        fewer = [{name: value for name, value in options.items() if name == "backend"}]
        fewer += [
            {name: value for name, value in options.items() if name != left} for left in options if left != "backend"
        ]
        for plainer in fewer:
            if plainer != options and self.asking.first([text], request_of(plainer), [pinned]) is not None:
                return self._plainer(text, plainer, pinned)
        return options

    def _written(self, find: Find, text: str) -> Path:
        place = Path(self._scratch.name) / f"find{find.seed}.py"
        place.write_text(text, encoding="utf-8")
        return place

    def _name(self, find: Find, answer: Answer, blame: Blame | None) -> None:
        root = root_of(answer["kind"], blame, find.small, answer["signatures"][0])
        with self._naming:
            alone = self._roots[sort_of(root[0]), *root[1:]]
        with alone:  # Two finds of one bug must not be two bugs, however near in time they are.
            self._name_alone(find, answer, blame, root)

    def _name_alone(self, find: Find, answer: Answer, blame: Blame | None, root: tuple[str, ...]) -> None:
        for bug in self.store.bugs():
            if same_root(bug, root):
                self.store.settle(find.seed, SETTLED, bug=bug.name)
                return
        shown = self.asking.script_showing(
            find.small, signature_of(answer), answer["leaves"], request_of(dict(find.options))
        )  # fmt: skip
        with self._naming:
            name = name_of(root, {bug.name for bug in self.store.bugs()} | self._names)
            self._names.add(name)
        bug = Bug(
            name=name, kind=root[0], stage=root[1], part=root[2],
            switch=dict(blame.switch) if blame is not None else {}, severity=answer["severity"], text=find.small,
            script=shown.text if shown is not None else "", title=title_of(find.small, answer), at=time.time(),
        )  # fmt: skip
        number = next((entry.number for entry in self.known if entry.covers(bug)), "")
        self._hand_over(replace(bug, known=number), find, answer, shown)

    def _hand_over(self, bug: Bug, find: Find, answer: Answer, shown: Shown | None) -> None:
        since = None
        if shown is not None:
            script = Path(self._scratch.name) / f"{bug.name}.py"
            script.write_text(shown.text, encoding="utf-8")
            since = self.others.since(script)
        where = environment(torch.device("cpu"))
        found = Found(bug=bug, find=find, answer=answer, environment=where, shown=shown, since=since)
        deliver(self.store.folder, found)
        self.store.add_bug(bug)
        self.store.settle(find.seed, SETTLED if shown is not None else UNSHOWN, bug=bug.name)


def like(bugs: Iterable[Bug], find: Find) -> list[Bug]:
    """Return the bugs of which a find may be one more."""
    calls = program_calls(find.text)
    return [bug for bug in bugs if looks_like(bug, find.answer["kind"], calls)]


def signature_of(answer: Mapping[str, Any]) -> Signature:
    """Return the first way in which a program fails, as an answer tells it."""
    return Signature(**answer["signatures"][0])


def title_of(text: str, answer: Mapping[str, Any]) -> str:
    """Return what is wrong with a program in one line: what fails, the operations, whether it is a gradient."""
    kind = str(answer["kind"])
    what = "torch.compile does not come to an end" if kind == HANGS else what_fails("torch.compile", kind)
    gradient = " (gradient)" if any(leaf.startswith("grad") for leaf in answer.get("leaves", ())) else ""
    return f"{what}: {', '.join(program_calls(text))}{gradient}"
