"""What workers do for verbs: load a model that is named, and check, examine, capture or explain it there.

Workers import this file before they are asked anything, and with it all that their jobs stand on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torchparity.diagnosis.steps
import torchparity.diagnosis.taps
import torchparity.judge.isolated
import torchparity.minifier.searcher  # noqa: F401 - jobs that workers are asked to do
from torchparity.compilers.written import request_from_json
from torchparity.diagnosis.whole import blame_whole
from torchparity.errors import ParityError
from torchparity.hunting.openings import FILE, write_openings
from torchparity.hunting.stretches import openings_of_case
from torchparity.judge.asking import oracle_for
from torchparity.observe.capture import DYNAMO
from torchparity.records import ProgressCallback, Verdict
from torchparity.records.wire import plain_data
from torchparity.request import Request
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.apart import VERDICT
from torchparity.verbs.capture import captured
from torchparity.verbs.explain import told_by_dynamo
from torchparity.verbs.failing import candidates, examine
from torchparity.verbs.remembering import remembering

Announce = Callable[[str], None]
Payload = Mapping[str, Any]


def target_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Load a target and do one thing with it, in the process that this is called in."""
    target, request = Target(**payload["target"]), request_from_json(payload["request"])
    try:
        subject = replace(target.load(), name=target.title()) if payload["named"] else target.load()
        # Which kernels were chosen is told by choosing them; other work patches the compiler.
        alike = payload["work"] == "check" and not (request.mode or "").startswith("max-autotune")
        asked = {"target": payload["target"], "request": payload["request"]}
        with remembering(payload["home"] if alike else None, asked):
            return WORK[payload["work"]](subject, request, payload, announce)
    except ParityError as error:
        return {"error": error.to_data()}


def _check(subject: Subject, request: Request, payload: Payload, announce: Announce) -> dict[str, Any]:
    return {"verdict": plain_data(oracle_for(subject, request, progress=telling(announce)).judge())}


def _examine(subject: Subject, request: Request, payload: Payload, announce: Announce) -> dict[str, Any]:
    """The verdict is on disk before anything else is tried: what comes after may take the process along."""

    def keep(verdict: Verdict) -> None:
        (folder / VERDICT).write_text(json.dumps(plain_data(verdict)), encoding="utf-8")

    folder, ahead = Path(payload["folder"]), Path(payload["ahead"]) if payload["ahead"] is not None else None
    found = examine(subject, request, folder, progress=telling(announce), keep=keep, ahead=ahead)
    return {"examined": plain_data(found)}


def _capture(subject: Subject, request: Request, payload: Payload, announce: Announce) -> dict[str, Any]:
    names, notes = candidates(subject, request, Path(payload["folder"]))
    return {"names": names, "notes": notes}


def _story(subject: Subject, request: Request, payload: Payload, announce: Announce) -> dict[str, Any]:
    return {"story": plain_data(told_by_dynamo(subject, request))}


def _whole(subject: Subject, request: Request, payload: Payload, announce: Announce) -> dict[str, Any]:
    return {"blame": plain_data(blame_whole(subject, request, listen=announce))}


def _openings(subject: Subject, request: Request, payload: Payload, announce: Announce) -> dict[str, Any]:
    """Stretches of a model's graphs, for a hunt around it."""
    cases, notes = captured(subject, request, None)
    found = [opening for case in cases if case.level == DYNAMO for opening in openings_of_case(case)]
    return {"openings": write_openings(Path(payload["folder"]) / FILE, found), "notes": notes}


WORK: dict[str, Callable[[Any, Request, Payload, Announce], dict[str, Any]]] = {
    "check": _check,
    "examine": _examine,
    "capture": _capture,
    "story": _story,
    "whole": _whole,
    "openings": _openings,
}


def telling(announce: Announce) -> ProgressCallback:
    """Return what tells the caller of each run."""
    return lambda event: announce(json.dumps(asdict(event)))
