"""What a check that fails leaves on disk: the verdict, the table, and the graph that fails by itself as a bundle."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchparity.errors import ParityError
from torchparity.execute.outcome import Limits
from torchparity.execute.pool import Pool
from torchparity.jobs.arguments import subject_of
from torchparity.jobs.finding import find_failing
from torchparity.jobs.watching import CaptureWarning
from torchparity.observe.guard import signature_of
from torchparity.records import Verdict
from torchparity.report.machine import write_json
from torchparity.report.terminal import plain_text
from torchparity.repro.bundle import write_bundle

BUNDLE, VERDICT, TABLE = "bundle", "verdict.json", "table.txt"
# One graph may take so long in a worker before the search goes on without it.
SECONDS = 600.0


class NoEvidence(Exception):
    """Something could not be written down, and why; the verdict stands all the same."""


def leave_verdict(verdict: Verdict, folder: Path) -> None:
    """Make a folder of a verdict and its table, whole or not at all, in place of whatever an earlier run left there."""
    partial = beside(folder)
    try:
        remove(folder)
        partial.mkdir(parents=True)
        write_json(verdict, partial / VERDICT)
        (partial / TABLE).write_text(plain_text(verdict) + "\n", encoding="utf-8")
        put_in_place(partial, folder)
    except (OSError, ParityError) as error:
        raise NoEvidence(str(error)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def leave_bundle(
    folder: Path,
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    how: Mapping[str, Any],
    *,
    pool: Pool | None = None,
) -> Path:
    """Write the first graph of a model that fails by itself into a folder; return the bundle.

    `how` are the options of the check that failed.
    """
    taken = {name: how[name] for name in inspect.signature(find_failing).parameters if name in how}
    try:
        subject = subject_of(model, args, kwargs, how.get("input_sets", ()))
        if how.get("loss") is not None:
            subject = replace(subject, loss=how["loss"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CaptureWarning)
            case, verdict = find_failing(subject, pool=pool, limits=Limits(seconds=SECONDS), **taken)
        return write_bundle(replace(case, signature=signature_of(None, verdict)), folder / BUNDLE)
    except ParityError as error:
        raise NoEvidence(f"{error.message} ({error.hint})") from None
    except Exception as error:  # Whatever it is, the verdict is there, and must not be lost for it.
        raise NoEvidence(f"{type(error).__name__}: {error}") from error


def beside(folder: Path) -> Path:
    """Return a name of a folder that no other process uses, hidden beside another."""
    return folder.with_name(f".{folder.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}")


def remove(folder: Path) -> None:
    """Remove a folder at once: it has another name before its files go."""
    aside = beside(folder)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def put_in_place(partial: Path, folder: Path) -> None:
    """Give a finished folder its name, also where another process has just taken it."""
    try:
        partial.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        remove(folder)
        partial.rename(folder)
