"""Edits of a Python program: each is a function from a tree to smaller or simpler trees, with a picture.

They come as changes that are yet to be made: only what is asked about is copied. A tree that comes in is never changed.
What comes out need not be valid: whoever asks about it finds out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from torchparity.programs.expressions import fewer_parts, simpler_constants, simpler_expressions
from torchparity.programs.names import (
    called_bodies,
    classes_as_functions,
    earlier_names,
    inlined,
    without_layers,
    without_parameters,
)
from torchparity.programs.statements import anchored, sliced, unwrapped, without_statements, without_unused
from torchparity.programs.tree import Change
from torchparity.programs.tree import parsed as parsed
from torchparity.programs.tree import printed as printed
from torchparity.programs.tree import size as size
from torchparity.programs.values import plain_tensors, smaller_inputs

Edit = Callable[[ast.Module], Iterator[Change]]
# In the order in which they are tried: what takes away most first.
EDITS: tuple[Edit, ...] = (
    sliced, without_unused, without_statements, unwrapped, anchored, simpler_expressions, without_layers,
    classes_as_functions, earlier_names, without_unused, without_parameters, fewer_parts, called_bodies, inlined,
    plain_tensors, smaller_inputs, simpler_constants,
)  # fmt: skip
