"""`blame`: which stage of the compiler does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from torchparity.diagnosis.blame import Inquiry
from torchparity.diagnosis.whole import blame_whole
from torchparity.errors import NoFailingGraph, NothingFails
from torchparity.records import Blame
from torchparity.repro.case import Case
from torchparity.request import Options, Request, request_for
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.apart import whole_apart
from torchparity.verbs.asking import ONE_GRAPH, subject_of, using
from torchparity.verbs.locate import What, bundle_of
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool


def blame(
    what: What,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_sets: Sequence[Any] = (),
    pool: Pool | None = None,
    limits: Limits | None = None,
    listen: Callable[[str], None] | None = None,
    **options: Unpack[Options],
) -> Blame:
    """Return which stage of the compiler the failure of a case, or of a model, comes from.

    Where each graph of a model agrees alone and the model differs all the same, what lies between is looked for.
    """
    with using(pool) as workers:
        try:
            with bundle_of(
                "blame", what, args, kwargs, input_sets, options, workers, limits=limits, listen=listen
            ) as it:
                return Inquiry(it[0], workers, limits=limits or ONE_GRAPH, listen=listen).run()
        except (NoFailingGraph, NothingFails):
            if isinstance(what, Case):
                raise
            subject = what if isinstance(what, Target) else subject_of(what, args, kwargs, input_sets)
            return blame_model(subject, request_for("blame", options), workers, limits or ONE_GRAPH, listen=listen)


def blame_model(
    what: Subject | Target,
    request: Request,
    pool: Pool,
    limits: Limits,
    *,
    listen: Callable[[str], None] | None = None,
) -> Blame:
    """Return what is to blame where a model differs and none of its graphs does by itself."""
    if isinstance(what, Target):
        return whole_apart(what, request, pool, limits, listen=listen)
    return blame_whole(what, request, listen=listen)
