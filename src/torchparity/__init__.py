"""torchparity: does the compiled model still compute what the model computes?

A name is imported when it is first used: pytest loads `torchparity.plugin`, and so this file, without torch too.
"""

import importlib
from typing import TYPE_CHECKING, Any

from torchparity.version import __version__

if TYPE_CHECKING:
    from torchparity import faults
    from torchparity.compare.legacy import same
    from torchparity.diagnosis.passes import watch_passes
    from torchparity.errors import (
        AccuracyError,
        BundleError,
        CaseError,
        ParityError,
        ResourceError,
        TargetError,
        TorchVersionError,
        UsageError,
    )
    from torchparity.execute.isolated import run_bundle
    from torchparity.jobs.checking import assert_parity, check
    from torchparity.jobs.finding import blame, check_passes, find_failing, locate
    from torchparity.jobs.minifying import minify, resume_minify
    from torchparity.jobs.watching import CaptureWarning, capture, explain
    from torchparity.minifier.driver import Minified
    from torchparity.minifier.reduction import Reduced, reduce_graph
    from torchparity.observe.guard import GuardWarning, guard
    from torchparity.pipeline import diagnose
    from torchparity.records import (
        Blame,
        Diagnosis,
        Kind,
        LeafReport,
        Located,
        Mismatch,
        PassesReport,
        Status,
        Story,
        Verdict,
    )
    from torchparity.repro.bundle import read_bundle, write_bundle
    from torchparity.repro.case import Case
    from torchparity.run.legacy import same_two_models
    from torchparity.run.recipe import Recipe
    from torchparity.run.subject import Subject

__all__ = [
    "AccuracyError",
    "Blame",
    "BundleError",
    "CaptureWarning",
    "Case",
    "CaseError",
    "Diagnosis",
    "GuardWarning",
    "Kind",
    "LeafReport",
    "Located",
    "Minified",
    "Mismatch",
    "ParityError",
    "PassesReport",
    "Recipe",
    "Reduced",
    "ResourceError",
    "Status",
    "Story",
    "Subject",
    "TargetError",
    "TorchVersionError",
    "UsageError",
    "Verdict",
    "__version__",
    "assert_parity",
    "blame",
    "capture",
    "check",
    "check_passes",
    "diagnose",
    "explain",
    "faults",
    "find_failing",
    "guard",
    "locate",
    "minify",
    "read_bundle",
    "reduce_graph",
    "resume_minify",
    "run_bundle",
    "same",
    "same_two_models",
    "watch_passes",
    "write_bundle",
]

# Where each of them is defined, as the imports above say it to those who read types.
HOMES = {
    "torchparity.compare.legacy": "same",
    "torchparity.diagnosis.passes": "watch_passes",
    "torchparity.errors": (
        "AccuracyError BundleError CaseError ParityError ResourceError TargetError TorchVersionError UsageError"
    ),
    "torchparity.execute.isolated": "run_bundle",
    "torchparity.minifier.driver": "Minified",
    "torchparity.minifier.reduction": "Reduced reduce_graph",
    "torchparity.observe.guard": "GuardWarning guard",
    "torchparity.jobs.checking": "assert_parity check",
    "torchparity.jobs.finding": "blame check_passes find_failing locate",
    "torchparity.jobs.minifying": "minify resume_minify",
    "torchparity.jobs.watching": "CaptureWarning capture explain",
    "torchparity.pipeline": "diagnose",
    "torchparity.records": "Blame Diagnosis Kind LeafReport Located Mismatch PassesReport Status Story Verdict",
    "torchparity.repro.bundle": "read_bundle write_bundle",
    "torchparity.repro.case": "Case",
    "torchparity.run.legacy": "same_two_models",
    "torchparity.run.recipe": "Recipe",
    "torchparity.run.subject": "Subject",
}
_HOME = {name: module for module, names in HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # A type checker would take every name for a good one.

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use."""
        if name == "faults":
            return importlib.import_module("torchparity.faults")
        if name not in _HOME:
            raise AttributeError(f"module 'torchparity' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Return the names that are here, and those that will be."""
        return sorted({*globals(), *__all__})
