"""What workers do in a hunt: draw programs and judge them, or judge one that is given."""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchparity.compilers.candidates import Compiled
from torchparity.compilers.recipe import recipe_of
from torchparity.errors import ParityError
from torchparity.hunting.grammar import Writer
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import settings_of
from torchparity.records import Verdict, signatures_of
from torchparity.records.wire import plain_data
from torchparity.request import Request, request_for
from torchparity.run.plan import plan_of, settled
from torchparity.run.target import Target

Announce = Callable[[str], None]
FACTORY = "make"


def batch_job(payload: dict[str, Any], announce: Announce) -> list[dict[str, Any]]:
    """Draw programs from consecutive seeds and judge each: its text is on disk before it runs, its answer after."""
    quiet()
    folder = Path(payload["folder"])
    answers = []
    for seed in range(payload["seed"], payload["seed"] + payload["count"]):
        place = folder / f"{seed}.py"
        announce(str(seed))
        writer = Writer(seed, payload["counts"])
        program = writer.write()
        place.write_text(program.text, encoding="utf-8")
        found = judged(place, dict(program.options) | payload["options"])
        found |= {"seed": seed, "features": program.features, "left_out": dict(writer.left_out)}
        found |= {"options": dict(program.options) | payload["options"]}
        place.with_suffix(".json").write_text(json.dumps(found), encoding="utf-8")
        answers.append(found)
    return answers


def program_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge one program that lies in a file."""
    quiet()
    return judged(Path(payload["file"]), payload["options"])


def judged(place: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return what the judge says of a program, as plain data."""
    torch.compiler.reset()
    began = time.perf_counter()
    request = request_for("check", {"exact": True, **options})
    try:
        verdict = verdict_on(place, request)
    except ParityError as error:
        return {"status": "error", "reasons": [error.message], "seconds": time.perf_counter() - began}
    except Exception as error:  # noqa: BLE001 - an error of ours is an answer of its own, and is counted as such
        return {"status": "error", "reasons": [f"{type(error).__name__}: {error}"[:500]], "seconds": 0.0}
    return told(verdict) | {"seconds": time.perf_counter() - began}


def verdict_on(place: Path, request: Request) -> Verdict:
    """Judge the program in a file."""
    torch.manual_seed(0)
    subject = Target(f"{place}:{FACTORY}").load()
    request = settled(request, subject, learns=True)
    return Oracle(subject, plan_of(request, subject), Compiled(recipe_of(request)), settings_of(request)).judge()


def told(verdict: Verdict) -> dict[str, Any]:
    """Return what a hunt wants to know of a verdict."""
    return {
        "status": verdict.status.value,
        "severity": verdict.severity.value,
        "kind": verdict.kind,
        "reasons": [reason[:400] for reason in verdict.reasons],
        "signatures": [plain_data(signature) for signature in signatures_of(verdict)],
        "leaves": [leaf.path for leaf in verdict.leaves if leaf.status.value == "differs"],
        "exact": len(verdict.exact),
    }


def quiet() -> None:
    """Let a thousand programs not warn of what they are."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
