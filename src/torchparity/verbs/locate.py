"""`locate`: which operation introduces the error."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from torchparity.diagnosis.locate import Search
from torchparity.judge.script import write_bundle
from torchparity.records import Located, Verdict
from torchparity.repro.case import Case
from torchparity.request import Options, request_for
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.asking import ONE_GRAPH, subject_of, using
from torchparity.verbs.failing import find
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool, default_workers

What = Case | Target | Subject | Callable[..., Any] | str


@contextlib.contextmanager
def bundle_of(
    verb: str,
    what: What,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    input_sets: Sequence[Any],
    options: Mapping[str, Any],
    pool: Pool,
    *,
    limits: Limits | None = None,
    listen: Callable[[str], None] | None = None,
) -> Iterator[tuple[Path, Verdict | None]]:
    """Yield the bundle that a verb is about, and what is known of it: a case, or a model's first graph that fails."""
    request = request_for("a bundle" if isinstance(what, Case) else verb, options)
    with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
        if isinstance(what, Case):
            yield write_bundle(what, Path(name) / "case"), None
            return
        subject = what if isinstance(what, Target) else subject_of(what, args, kwargs, input_sets)
        failing = find(subject, request, Path(name), pool, limits=limits, listen=listen)
        yield failing.folder, failing.verdict


def locate(
    what: What,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_sets: Sequence[Any] = (),
    pool: Pool | None = None,
    limits: Limits | None = None,
    listen: Callable[[str], None] | None = None,
    **options: Unpack[Options],
) -> Located:
    """Return which operation introduces the error of a case, or of the first graph of a model that fails."""
    with (
        using(pool, workers=default_workers()) as workers,
        bundle_of("locate", what, args, kwargs, input_sets, options, workers, limits=limits, listen=listen) as found,
    ):
        folder, verdict = found
        return Search(folder, workers, limits=limits or ONE_GRAPH, listen=listen, verdict=verdict).run()
