"""torchparity: does the compiled model still compute what the model computes?

A name is imported when it is first used: pytest loads `torchparity.plugin`, and so this file, without torch too.
"""

import importlib
from typing import TYPE_CHECKING, Any

from torchparity.version import __version__ as __version__

if TYPE_CHECKING:
    from torchparity import faults as faults
    from torchparity.compare.legacy import same as same
    from torchparity.compilers.recipe import Recipe as Recipe
    from torchparity.diagnosis.passes import watch_passes as watch_passes
    from torchparity.errors import AccuracyError as AccuracyError
    from torchparity.errors import BundleError as BundleError
    from torchparity.errors import CaseError as CaseError
    from torchparity.errors import ParityError as ParityError
    from torchparity.errors import ResourceError as ResourceError
    from torchparity.errors import TargetError as TargetError
    from torchparity.errors import TorchVersionError as TorchVersionError
    from torchparity.errors import UsageError as UsageError
    from torchparity.judge.script import write_bundle as write_bundle
    from torchparity.minifier.minified import Minified as Minified
    from torchparity.minifier.reduction import Reduced as Reduced
    from torchparity.minifier.reduction import reduce_graph as reduce_graph
    from torchparity.observe.guard import GuardWarning as GuardWarning
    from torchparity.observe.guard import guard as guard
    from torchparity.records import Blame as Blame
    from torchparity.records import Course as Course
    from torchparity.records import Diagnosis as Diagnosis
    from torchparity.records import Kind as Kind
    from torchparity.records import LeafReport as LeafReport
    from torchparity.records import Located as Located
    from torchparity.records import Mismatch as Mismatch
    from torchparity.records import PassesReport as PassesReport
    from torchparity.records import ReleaseAnswer as ReleaseAnswer
    from torchparity.records import ReleaseState as ReleaseState
    from torchparity.records import Severity as Severity
    from torchparity.records import Since as Since
    from torchparity.records import Status as Status
    from torchparity.records import Story as Story
    from torchparity.records import Verdict as Verdict
    from torchparity.repro.bundle import read_bundle as read_bundle
    from torchparity.repro.case import Case as Case
    from torchparity.request import Request as Request
    from torchparity.run.legacy import same_two_models as same_two_models
    from torchparity.run.subject import Subject as Subject
    from torchparity.run.target import Target as Target
    from torchparity.verbs.blame import blame as blame
    from torchparity.verbs.capture import CaptureWarning as CaptureWarning
    from torchparity.verbs.capture import capture as capture
    from torchparity.verbs.check import assert_parity as assert_parity
    from torchparity.verbs.check import check as check
    from torchparity.verbs.diagnose import diagnose as diagnose
    from torchparity.verbs.explain import explain as explain
    from torchparity.verbs.failing import find_failing as find_failing
    from torchparity.verbs.hunt import hunt as hunt
    from torchparity.verbs.locate import locate as locate
    from torchparity.verbs.minify import minify as minify
    from torchparity.verbs.minify import resume_minify as resume_minify
    from torchparity.verbs.passes import check_passes as check_passes
    from torchparity.verbs.run import run_bundle as run_bundle
    from torchparity.verbs.since import since as since
    from torchparity.verbs.sweep import sweep as sweep

# Where each of them is defined, as the imports above say it to those who read types.
HOMES = {
    "torchparity.compare.legacy": "same",
    "torchparity.compilers.recipe": "Recipe",
    "torchparity.diagnosis.passes": "watch_passes",
    "torchparity.errors": (
        "AccuracyError BundleError CaseError ParityError ResourceError TargetError TorchVersionError UsageError"
    ),
    "torchparity.judge.script": "write_bundle",
    "torchparity.minifier.minified": "Minified",
    "torchparity.minifier.reduction": "Reduced reduce_graph",
    "torchparity.observe.guard": "GuardWarning guard",
    "torchparity.records": (
        "Blame Course Diagnosis Kind LeafReport Located Mismatch PassesReport ReleaseAnswer ReleaseState "
        "Severity Since Status Story Verdict"
    ),
    "torchparity.repro.bundle": "read_bundle",
    "torchparity.repro.case": "Case",
    "torchparity.request": "Request",
    "torchparity.run.legacy": "same_two_models",
    "torchparity.run.subject": "Subject",
    "torchparity.run.target": "Target",
    "torchparity.verbs.blame": "blame",
    "torchparity.verbs.capture": "CaptureWarning capture",
    "torchparity.verbs.check": "assert_parity check",
    "torchparity.verbs.diagnose": "diagnose",
    "torchparity.verbs.explain": "explain",
    "torchparity.verbs.failing": "find_failing",
    "torchparity.verbs.locate": "locate",
    "torchparity.verbs.minify": "minify resume_minify",
    "torchparity.verbs.passes": "check_passes",
    "torchparity.verbs.run": "run_bundle",
    "torchparity.verbs.hunt": "hunt",
    "torchparity.verbs.since": "since",
    "torchparity.verbs.sweep": "sweep",
}
_HOME = {name: module for module, names in HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # A type checker would take every name for a good one.
    __all__ = ["__version__", "faults", *_HOME]

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
