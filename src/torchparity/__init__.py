"""torchparity: does the compiled model still compute what the model computes?"""

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
]
