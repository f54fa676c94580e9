"""A subject and a request, made into the oracle that judges the one as the other says."""

from __future__ import annotations

from torchparity.compilers.candidates import Compiled
from torchparity.compilers.recipe import recipe_of
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import settings_of
from torchparity.records import ProgressCallback
from torchparity.request import Request
from torchparity.run.plan import plan_of, settled
from torchparity.run.subject import Subject


def oracle_for(subject: Subject, request: Request, *, progress: ProgressCallback | None = None) -> Oracle:
    """Return what judges a subject as a request says, or refuse what it cannot mean for this subject."""
    recipe = recipe_of(request, dynamic=subject.dynamic)
    request = settled(request, subject, learns=recipe.engine is None)
    candidate = Compiled(recipe)
    return Oracle(subject, plan_of(request, subject), candidate, settings_of(request, progress=progress))
