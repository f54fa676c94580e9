"""torchparity: does the compiled model still compute what the model computes?"""

from torchparity import faults
from torchparity.compare.legacy import same
from torchparity.errors import (
    AccuracyError,
    ParityError,
    ResourceError,
    TargetError,
    TorchVersionError,
    UsageError,
)
from torchparity.pipeline import assert_parity, check
from torchparity.records import Kind, LeafReport, Mismatch, Status, Verdict
from torchparity.run.legacy import same_two_models
from torchparity.run.recipe import Recipe
from torchparity.run.subject import Subject
from torchparity.version import __version__

__all__ = [
    "AccuracyError",
    "Kind",
    "LeafReport",
    "Mismatch",
    "ParityError",
    "Recipe",
    "ResourceError",
    "Status",
    "Subject",
    "TargetError",
    "TorchVersionError",
    "UsageError",
    "Verdict",
    "__version__",
    "assert_parity",
    "check",
    "faults",
    "same",
    "same_two_models",
]
