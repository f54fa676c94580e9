"""torchparity: does the compiled model still compute what the model computes?"""

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
from torchparity.minifier.driver import Minified
from torchparity.minifier.reduction import Reduced, reduce_graph
from torchparity.observe.guard import GuardWarning, guard
from torchparity.pipeline import (
    CaptureWarning,
    assert_parity,
    blame,
    capture,
    check,
    check_passes,
    explain,
    find_failing,
    locate,
    minify,
    resume_minify,
)
from torchparity.records import Blame, Kind, LeafReport, Located, Mismatch, PassesReport, Status, Story, Verdict
from torchparity.repro.bundle import read_bundle, write_bundle
from torchparity.repro.case import Case
from torchparity.run.legacy import same_two_models
from torchparity.run.recipe import Recipe
from torchparity.run.subject import Subject
from torchparity.version import __version__

__all__ = [
    "AccuracyError",
    "Blame",
    "BundleError",
    "CaptureWarning",
    "Case",
    "CaseError",
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
