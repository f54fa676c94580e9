"""From a find to a bug: seen again, made small, blamed, told from the others, shown by a script."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchparity.hunting.delivery import deliver
from torchparity.hunting.jobs import PROGRAM_JOB, SECONDS, Answer, answer_of, first_failing, pin_of, pins_of
from torchparity.hunting.roots import Known, name_of, program_calls, root_of, same_root, sort_of
from torchparity.hunting.store import GONE, LIKELY, SETTLED, UNSHOWN, Bug, Find, Store
from torchparity.programs.script import shown_by
from torchparity.programs.small import Budget, make_small
from torchparity.records import Blame
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool

# Backends that compile little: where a find shows with one of them, it is made small with that.
CHEAP = ("aot_eager",)
# So many finds of a bug are looked into; more that look like it are counted as likely.
ENOUGH = 3
BUDGET = Budget(questions=600, seconds=420.0)

Blamer = Callable[[Path, Mapping[str, Any]], Blame | None]


class Inquiry:
    """Settles finds, one after the other."""

    def __init__(
        self, store: Store, pool: Pool, blame: Blamer, known: Sequence[Known], budget: Budget = BUDGET
    ) -> None:
        self.store, self.pool, self.blame, self.known, self.budget = store, pool, blame, known, budget
        self._numbers = itertools.count()
        self._scratch = tempfile.TemporaryDirectory(prefix="torchparity-hunt-")

    def close(self) -> None:
        """Let go of what was written on the way."""
        self._scratch.cleanup()

    def ask(self, text: str, options: Mapping[str, Any]) -> Answer:
        """Judge a text in a process of its own."""
        payload = {"file": str(self._written(text)), "options": dict(options)}
        return answer_of(self.pool.submit(PROGRAM_JOB, payload, limits=Limits(seconds=SECONDS)).result())

    def _written(self, text: str) -> Path:
        place = Path(self._scratch.name) / f"q{next(self._numbers)}.py"
        place.write_text(text, encoding="utf-8")
        return place

    def settle(self, find: Find) -> None:
        """Find out which bug a find is, and hand over what is new."""
        likely = self._likely(find)
        if likely is not None:
            self.store.settle(find.seed, LIKELY, bug=likely.name)
            return
        pinned = pin_of(find.answer)
        again = self.ask(find.text, find.options)
        if pinned not in pins_of(again):
            self.store.settle(find.seed, GONE, note=f"not seen again: {again['status']}")
            return
        options = self._cheapest(find, pinned)
        smaller = make_small(
            find.text,
            lambda texts: first_failing(self.pool, [self._written(text) for text in texts], options, [pinned]),
            budget=self.budget,
        )
        small, answer = smaller.text, self.ask(smaller.text, find.options)
        if pinned not in pins_of(answer):
            small, answer = find.text, again  # It was followed with another backend, and there it is another failure.
        self.store.settle(find.seed, find.state, small=small, questions=smaller.questions)
        self._name(replace(find, small=small, questions=smaller.questions), answer)

    def _likely(self, find: Find) -> Bug | None:
        """Return a bug that was looked into often enough, and of which this is likely one more."""
        calls = set(program_calls(find.text))
        counted = [other.bug for other in self.store.finds(SETTLED)]
        for bug in self.store.bugs():
            alike = sort_of(bug.kind) == sort_of(find.answer["kind"]) and set(program_calls(bug.text)) <= calls
            if alike and counted.count(bug.name) >= ENOUGH:
                return bug
        return None

    def _cheapest(self, find: Find, pinned: tuple[str, ...]) -> dict[str, Any]:
        for backend in CHEAP:
            options = {name: value for name, value in find.options.items() if name not in ("mode", "config")}
            if pinned in pins_of(self.ask(find.text, options | {"backend": backend})):
                return options | {"backend": backend}
        return dict(find.options)

    def _name(self, find: Find, answer: Answer) -> None:
        place = Path(self._scratch.name) / f"find{find.seed}.py"
        place.write_text(find.small, encoding="utf-8")
        blame = self.blame(place, find.options)
        root = root_of(answer["kind"], blame, find.small, answer["signatures"][0])
        bugs = self.store.bugs()
        for bug in bugs:
            if same_root(bug, root):
                self.store.settle(find.seed, SETTLED, bug=bug.name)
                return
        kind, leaves = answer["kind"], tuple(answer["leaves"])
        shown = shown_by(find.small, kind, leaves, find.options)
        bug = Bug(
            name=name_of(root, (bug.name for bug in bugs)), kind=root[0], stage=root[1], part=root[2],
            switch=dict(blame.switch) if blame is not None else {}, severity=answer["severity"], text=find.small,
            script=shown.text if shown is not None else "", title=" ".join(answer["reasons"][:1]), at=time.time(),
        )  # fmt: skip
        number = next((entry.number for entry in self.known if entry.covers(bug)), "")
        bug = replace(bug, known=number)
        deliver(self.store.folder, bug, find, answer, shown)
        self.store.add_bug(bug)
        self.store.settle(find.seed, SETTLED if shown is not None else UNSHOWN, bug=bug.name)
