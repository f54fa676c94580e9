"""A model's own file as a program, made small: where no single graph shows what a few lines of Python show."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Callable
from pathlib import Path

from torchparity.errors import ParityError
from torchparity.minifier.delivery import verified
from torchparity.minifier.programs import Asking
from torchparity.programs.script import FACTORY
from torchparity.programs.small import Budget, Smaller
from torchparity.programs.tree import printed, renamed
from torchparity.records import Smallest, SmallProgram, Verdict, signatures_of
from torchparity.repro.source import SCRIPT
from torchparity.request import Request
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.apart import checked_apart
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool

PROGRAM = "program.py"
CHECK = Limits(seconds=1800.0)


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

    The verdict on the model is asked for where it is not there; `budget` is in seconds. Only a model that a file of
    Python makes has a text that can be made small, and only a backend that has a name can be asked elsewhere.
    """
    text = own_text(what) if isinstance(what, Target) else None
    if text is None or not isinstance(what, Target) or not isinstance(request.backend, str):
        return None
    try:
        verdict = verdict if verdict is not None else checked_apart(what, request, pool, CHECK)
    except ParityError:
        return None
    wanted = signatures_of(verdict)[:1]  # What else was seen may be another failure.
    if not wanted:
        return None
    if say is not None:
        say("making the program small")
    with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
        asking = Asking(pool, Path(name))
        smaller = asking.make_small(text, request, wanted, Budget() if budget is None else Budget(seconds=budget))
        return delivered(smaller, asking, request, verdict) if smaller is not None else None


def own_text(what: Target) -> str | None:
    """Return the file that a model comes from, with its factory under the name that programs give it."""
    place, _, name = what.name.rpartition(":")
    if not place.endswith(".py") or not name.isidentifier() or what.device not in (None, "cpu"):
        return None
    tree = ast.parse(Path(place).read_text(encoding="utf-8"))
    made = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(made) == 1 and made[0] in tree.body:
        made[0].name = FACTORY
        renamed(tree, name, ast.Name(FACTORY, ast.Load()))
    elif name != FACTORY:
        tree.body += ast.parse(f"def {FACTORY}():\n    return {name}()").body
    return printed(tree)


def delivered(smaller: Smaller, asking: Asking, request: Request, verdict: Verdict) -> SmallProgram | None:
    """Return a program with the script that shows it, and what is said of it."""
    answer = asking.verdict(smaller.text, request)
    if answer is None:
        return None
    shown = asking.shown_by(smaller.text, answer, request)
    again = (0, 0)
    if shown is not None:
        script = asking.written(shown.text)
        again = verified(script, shown.text, signatures_of(answer)[0], plain=True, probes=asking.pool.probes).reproduced
    return SmallProgram(
        text=smaller.text,
        script=shown.text if shown is not None else "",
        output=shown.output if shown is not None else "",
        beyond_default=shown is not None and shown.beyond_default,
        reproduced=again,
        operations=operations_in(smaller.text),
        started_from=verdict.compiled.operations if verdict.compiled is not None else 0,
        kind=answer.kind,
        reasons=answer.reasons,
        questions=smaller.questions,
        finished=smaller.finished,
    )


def operations_in(text: str) -> int:
    """Return how many calls, signs and subscripts a program has, but for those that make its inputs."""
    bodies = [node for node in ast.parse(text).body if getattr(node, "name", "") != FACTORY]
    kinds = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Compare)
    return sum(isinstance(node, kinds) for body in bodies for node in ast.walk(body))


def as_smallest(found: SmallProgram, folder: Path, seconds: float) -> Smallest:
    """Write a program and its script to a folder, and return what a diagnosis keeps of it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_text(found.text, encoding="utf-8")
    if found.script:
        (folder / SCRIPT).write_text(found.script, encoding="utf-8")
    return Smallest(
        operations=found.operations,
        inputs=0,
        started_from={"operations": found.started_from},
        program=True,
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
