"""An error that we raise on purpose, as two lines on stderr."""

from __future__ import annotations

from rich.console import Console

from torchparity.errors import ParityError
from torchparity.records.strangers import harmless


def complain(error: ParityError) -> None:
    """Print what happened and the way out."""
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"error: {harmless(error.message)}", style="red", markup=False, highlight=False)
    console.print(f"hint: {harmless(error.hint)}", markup=False, highlight=False)
