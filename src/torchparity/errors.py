"""The exception tree.

ParityError                 everything torchparity raises on purpose: a message and a hint
├── UsageError              the question was asked wrongly                        (exit 2)
│   └── NothingFails        what should be made small or blamed does not fail     (exit 3, or 125: nobody knows)
│       └── NoFailingGraph  every graph of a model agrees by itself
├── TargetError             the user's target could not be loaded or called       (exit 2)
├── TorchVersionError       this torch lacks a name that torchparity stands on    (exit 2)
├── CaseError               a graph or an input that cannot be written down exactly   (exit 2)
├── BundleError             a bundle that is damaged, newer, or not a bundle       (exit 2)
├── ResourceError           the question could not be answered here               (exit 125)
└── AccuracyError           asserted parity does not hold; carries the verdict    (exit 1)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchparity.records import Verdict


# The exit code of a question that was not answered.
NO_ANSWER = 125
# And of one that somebody has broken off.
INTERRUPTED = 130


class ParityError(Exception):
    """An error that says what to do: the first line is what happened, the hint is the way out."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def to_data(self) -> dict[str, str]:
        """Return the error as plain data, to be raised again in another process."""
        return {"type": type(self).__name__, "message": self.message, "hint": self.hint, "code": str(self.exit_code)}


class UsageError(ParityError):
    """An option or an argument that cannot mean anything."""


class NothingFails(UsageError):
    """What a search should begin with does not fail; or, with `unknown`, so many answers did not come."""

    def __init__(self, message: str, *, hint: str, unknown: int = 0) -> None:
        super().__init__(message if unknown else f"nothing fails: {message}", hint=hint)
        self.unknown = int(unknown)
        self.exit_code = NO_ANSWER if unknown else 3


class NoFailingGraph(NothingFails):
    """None of a model's graphs fails by itself; the model as a whole still may. `unknown` could not be judged."""


class TargetError(ParityError):
    """The user's model, factory or inputs could not be loaded or called."""


class TorchVersionError(ParityError):
    """A private name of torch that torchparity needs is not in this version."""


class CaseError(ParityError):
    """A graph, an operation or an input that source and plain data cannot say exactly."""


class BundleError(ParityError):
    """A bundle on disk that cannot be trusted to be what was written."""


class ResourceError(ParityError):
    """The machine, not the model, stopped the check: out of memory, a device that is not there."""

    exit_code = NO_ANSWER


class AccuracyError(ParityError, AssertionError):
    """The compiled model does not compute what the model computes."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str, verdict: Verdict | None = None) -> None:
        super().__init__(message, hint=hint)
        self.verdict = verdict


def error_from(data: Mapping[str, str]) -> ParityError:
    """Return the error that another process has told of."""
    kind: type[ParityError] = globals().get(data["type"], ParityError)
    error = kind("", hint=data["hint"])
    error.args, error.message = (data["message"],), data["message"]
    error.exit_code = int(data.get("code", kind.exit_code))
    return error
