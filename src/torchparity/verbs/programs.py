"""A model as a program, made small: where no single graph shows what two lines of Python show."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchparity.errors import ParityError
from torchparity.hunting.jobs import PROGRAM_JOB, SECONDS, Pin, answer_of, first_failing, pins_of
from torchparity.programs.edits import parsed, printed
from torchparity.programs.flat import plain_values, shortest
from torchparity.programs.recorded import Recorded
from torchparity.programs.script import Shown, shown_by
from torchparity.programs.small import Budget, make_small
from torchparity.records import SmallProgram, Verdict, signatures_of
from torchparity.records.wire import record_from
from torchparity.request import Request
from torchparity.run.target import Target
from torchparity.verbs.apart import ask
from torchparity.workers.outcome import Ending, Limits
from torchparity.workers.pool import Pool

QUERY = Limits(seconds=SECONDS)
# More and more of a compiler, until the failure shows: the less, the cheaper each question.
CHEAPER = ("eager", "aot_eager")
# What a flat program is not asked with: its parameters are inputs, and those that want gradients say so.
OF_MODELS = ("train", "optimizer", "steps", "loss", "backward", "input_gradients", "exact", "fresh_cache")


class Following:
    """Asks about texts, in workers, whether they still fail in one of the ways that were pinned."""

    def __init__(self, pool: Pool, folder: Path, pins: list[Pin], options: Mapping[str, Any]) -> None:
        self.pool, self.folder, self.pins, self.options = pool, folder, pins, dict(options)
        self.numbers = itertools.count()

    def answer(self, text: str, **more: Any) -> dict[str, Any]:
        """Return what is said of a text."""
        payload = {"file": str(self._written(text)), "options": {**self.options, **more}}
        return answer_of(self.pool.submit(PROGRAM_JOB, payload, limits=QUERY).result())

    def first(self, texts: Sequence[str]) -> int | None:
        """Return the place of the first text that fails as it should."""
        return first_failing(self.pool, [self._written(text) for text in texts], self.options, self.pins)

    def _written(self, text: str) -> Path:
        place = self.folder / f"q{next(self.numbers)}.py"
        place.write_text(text, encoding="utf-8")
        return place

    def settle_on(self, text: str) -> bool:
        """Ask with as little of the compiler as shows the failure from now on; tell whether it shows at all."""
        own = self.options.get("backend", "inductor")
        for backend in (*CHEAPER, own) if own == "inductor" else (own,):
            if set(self.pins) & set(pins_of(self.answer(text, backend=backend))):
                self.options["backend"] = backend
                return True
        return False


def small_program(
    target: Target,
    request: Request,
    verdict: Verdict,
    pool: Pool,
    *,
    budget: Budget | None = None,
    say: Callable[[str], None] | None = None,
) -> SmallProgram | None:
    """Return the smallest program of Python that fails as a model does; None where none was found."""
    pins = [(entry.kind, entry.error, entry.frame) for entry in signatures_of(verdict)]
    options = {name: value for name, value in request.given().items() if name not in OF_MODELS}
    options["exact"] = request.exact
    with tempfile.TemporaryDirectory(prefix="torchparity-program-") as name:
        following = Following(pool, Path(name), pins, options)
        text = flat_text(target, request, following, say) or own_text(target, request, following)
        if text is None:
            return None
        if say is not None:
            say("making the program small")
        smaller = make_small(text, following.first, budget=budget)
        following.options = options
        return delivered(smaller.text, smaller.questions, following)


def flat_text(target: Target, request: Request, following: Following, say: Callable[[str], None] | None) -> str | None:
    """Return the part of what the model calls that fails, as a flat program."""
    if say is not None:
        say("writing down every call that the model makes")
    outcome = ask("record", target, request, following.pool, QUERY, folder=following.folder)
    if outcome.ending is not Ending.RETURNED or "recorded" not in outcome.value:
        return None
    recorded = record_from(Recorded, outcome.value["recorded"])
    values = str(following.folder / "values.pt")

    def loaded(name: str) -> str:
        return f"torch.load({values!r})[{name!r}]"

    for way in (plain_values(recorded), loaded):
        if following.settle_on(recorded.text(0, len(recorded.lines), way)):
            return shortest(recorded, following.first, loaded, plainly=way is not loaded)
    return None


def own_text(target: Target, request: Request, following: Following) -> str | None:
    """Return the file that the model comes from, with its factory under the name that programs give it."""
    place, _, name = target.name.rpartition(":")
    if not place.endswith(".py") or not name.isidentifier():
        return None
    text = Path(place).read_text(encoding="utf-8")
    text = text if name == "make" else f"{text}\n\ndef make():\n    return {name}()\n"
    if request.given().keys() & {"train", "optimizer", "loss"}:
        following.options |= {key: value for key, value in request.given().items() if key in OF_MODELS}
    return text if following.settle_on(printed(parsed(text))) else None


def delivered(text: str, questions: int, following: Following) -> SmallProgram:
    """Return a program with the script that shows it, and what is said of it."""
    answer = following.answer(text)
    shown: Shown | None = None
    if answer["status"] == "differs":
        try:
            shown = shown_by(text, answer["kind"], tuple(answer["leaves"]), following.options)
        except (ParityError, ValueError, StopIteration):
            shown = None  # The factory ends in no pair of a function and its arguments.
    return SmallProgram(
        text=text,
        script=shown.text if shown is not None else "",
        output=shown.output if shown is not None else "",
        beyond_default=shown is not None and shown.beyond_default,
        kind=answer.get("kind", ""),
        reasons=tuple(answer.get("reasons", ())),
        questions=questions,
    )
