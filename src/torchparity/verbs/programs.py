"""A model as a program, made small: where no single graph shows what two lines of Python show."""

from __future__ import annotations

import ast
import itertools
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchparity.errors import ParityError
from torchparity.hunting.jobs import PROGRAM_JOB, SECONDS, Pin, answer_of, first_failing, pins_of
from torchparity.judge.isolated import verdict_of
from torchparity.programs.edits import parsed, printed
from torchparity.programs.flat import plain_values, shortest
from torchparity.programs.recorded import Recorded
from torchparity.programs.script import Shown, run_script, shown_by
from torchparity.programs.small import Budget, Smaller, make_small
from torchparity.records import Smallest, SmallProgram, Verdict, signatures_of
from torchparity.records.wire import record_from
from torchparity.repro.source import SCRIPT
from torchparity.request import Request
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.apart import ask
from torchparity.verbs.check import oracle_for
from torchparity.verbs.jobs import VALUES, recorded_in
from torchparity.workers.outcome import Ending, Limits
from torchparity.workers.pool import Pool

QUERY = Limits(seconds=SECONDS)
PROGRAM = "program.py"
CHECK = Limits(seconds=1800.0)
# How often a script is run before it is handed over.
TIMES = 3
# What options may be that are handed to another process.
PLAIN = (str, int, float, bool, dict, type(None))
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


def minify_program(
    what: Target | Subject,
    request: Request,
    pool: Pool,
    *,
    verdict: Verdict | None = None,
    budget: float | None = None,
    say: Callable[[str], None] | None = None,
) -> SmallProgram | None:
    """Return the smallest program of Python that fails as a model does; None where none was found.

    The verdict on the model is asked for where it is not there; `budget` is in seconds.
    """
    if verdict is None:
        verdict = checked(what, request, pool)
    pins: list[Pin] = [(entry.kind, entry.error, entry.frame) for entry in signatures_of(verdict)]
    options = {name: value for name, value in request.given().items() if name not in OF_MODELS}
    options["exact"] = request.exact
    if not pins or any(not isinstance(value, PLAIN) for value in options.values()):
        return None  # A backend that is an object cannot be handed to another process.
    with tempfile.TemporaryDirectory(prefix="torchparity-program-") as name:
        following = Following(pool, Path(name), pins, options)
        text = flat_text(what, request, following, say) or own_text(what, request, following)
        if text is None:
            return None
        if say is not None:
            say("making the program small")
        spend = Budget() if budget is None else Budget(seconds=budget)
        smaller = make_small(text, following.first, budget=spend)
        following.options = options
        return delivered(smaller, following, verdict)


def checked(what: Target | Subject, request: Request, pool: Pool) -> Verdict:
    """Judge a model: one that is named in a worker, another here."""
    if isinstance(what, Subject):
        return oracle_for(what, request).judge()
    outcome = ask("check", what, request, pool, CHECK)
    return verdict_of(outcome, subject=what.title(), backend=str(request.backend))


def flat_text(
    what: Target | Subject, request: Request, following: Following, say: Callable[[str], None] | None
) -> str | None:
    """Return the part of what the model calls that fails, as a flat program."""
    if say is not None:
        say("writing down every call that the model makes")
    if isinstance(what, Subject):
        found = recorded_in(what, request, following.folder)
    else:
        outcome = ask("record", what, request, following.pool, CHECK, folder=following.folder)
        found = outcome.value if outcome.ending is Ending.RETURNED else {}
    if "recorded" not in found:
        return None
    recorded = record_from(Recorded, found["recorded"])
    values = str(following.folder / VALUES)

    def loaded(name: str) -> str:
        return f"torch.load({values!r})[{name!r}]"

    for way in (plain_values(recorded), loaded):
        if following.settle_on(recorded.text(0, len(recorded.lines), way)):
            return shortest(recorded, following.first, loaded, plainly=way is not loaded)
    return None


def own_text(what: Target | Subject, request: Request, following: Following) -> str | None:
    """Return the file that the model comes from, with its factory under the name that programs give it."""
    if isinstance(what, Subject):
        return None
    place, _, name = what.name.rpartition(":")
    if not place.endswith(".py") or not name.isidentifier():
        return None
    text = Path(place).read_text(encoding="utf-8")
    text = text if name == "make" else f"{text}\n\ndef make():\n    return {name}()\n"
    if request.given().keys() & {"train", "optimizer", "loss"}:
        following.options |= {key: value for key, value in request.given().items() if key in OF_MODELS}
    return text if following.settle_on(printed(parsed(text))) else None


def delivered(smaller: Smaller, following: Following, verdict: Verdict) -> SmallProgram:
    """Return a program with the script that shows it, and what is said of it."""
    text = smaller.text
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
        reproduced=reproduced(shown.text) if shown is not None else (0, 0),
        operations=len(operations_in(text)),
        inputs=text.partition("def program(")[2].partition(")")[0].count(",") + 1,
        started_from=verdict.compiled.operations if verdict.compiled is not None else 0,
        kind=answer.get("kind", ""),
        reasons=tuple(answer.get("reasons", ())),
        questions=smaller.questions,
        finished=smaller.finished,
    )


def operations_in(text: str) -> list[ast.AST]:
    """Return the calls, signs and subscripts of a program, but for those that make its inputs."""
    bodies = [node for node in ast.parse(text).body if getattr(node, "name", "") != "make"]
    kinds = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Compare)
    return [node for body in bodies for node in ast.walk(body) if isinstance(node, kinds)]


def as_smallest(found: SmallProgram, folder: Path, seconds: float) -> Smallest:
    """Write a program and its script to a folder, and return what a diagnosis keeps of it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_text(found.text, encoding="utf-8")
    if found.script:
        (folder / SCRIPT).write_text(found.script, encoding="utf-8")
    return Smallest(
        operations=found.operations,
        inputs=found.inputs,
        started_from={"operations": found.started_from, "inputs": found.inputs},
        script=found.script or found.text,
        script_path=f"{folder.name}/{SCRIPT if found.script else PROGRAM}",
        output=found.output,
        title=next(iter(found.reasons), ""),
        plain=bool(found.script),
        reproduced=found.reproduced,
        queries=found.questions,
        seconds=seconds,
        complete=found.finished,
        failure=found.kind,
    )


def reproduced(script: str) -> tuple[int, int]:
    """Run a script in cold processes; return how often it failed, of how many times."""
    return sum(run_script(script, {}, sys.executable)[0] == 1 for _ in range(TIMES)), TIMES
