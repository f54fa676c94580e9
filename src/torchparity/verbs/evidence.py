"""What a check that fails leaves on disk: the verdict, the table, and the graph that fails by itself as a bundle."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchparity.errors import ParityError
from torchparity.judge.script import write_bundle
from torchparity.records import Verdict, signature_of
from torchparity.report.machine import write_json
from torchparity.report.terminal import plain_text
from torchparity.repro.folders import replacing
from torchparity.request import request_for
from torchparity.verbs.asking import subject_of
from torchparity.verbs.failing import find
from torchparity.workers.pool import Pool

BUNDLE, VERDICT, TABLE = "bundle", "verdict.json", "table.txt"


class NoEvidence(Exception):
    """Something could not be written down, and why; the verdict stands all the same."""


def leave_verdict(verdict: Verdict, folder: Path) -> None:
    """Make a folder of a verdict and its table, whole or not at all, in place of whatever an earlier run left there."""
    try:
        with replacing(folder, kept_unless=lambda held: True) as partial:
            write_json(verdict, partial / VERDICT)
            (partial / TABLE).write_text(plain_text(verdict) + "\n", encoding="utf-8")
    except (OSError, ParityError) as error:
        shutil.rmtree(folder, ignore_errors=True)  # What an earlier run left would be taken for this one's.
        raise NoEvidence(str(error)) from None


def leave_bundle(
    folder: Path,
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    *,
    pool: Pool,
) -> Path:
    """Write the first graph of a model that fails by itself into a folder; return the bundle.

    `options` are those of the check that failed.
    """
    asked = dict(options)
    try:
        subject = subject_of(model, args, kwargs, asked.pop("input_sets", ()))
        asked.pop("progress", None)
        with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
            failing = find(subject, request_for("check", asked), Path(name), pool)
            case = replace(failing.case, signature=signature_of(None, failing.verdict))
            return write_bundle(case, folder / BUNDLE)
    except ParityError as error:
        raise NoEvidence(f"{error.message} ({error.hint})") from None
    except Exception as error:  # Whatever it is, the verdict is there, and must not be lost for it.
        raise NoEvidence(f"{type(error).__name__}: {error}") from error
