"""Smaller shapes: every dimension of one size is cut to another one, all through the graph.

    f(x[64, 768], w[768, 768]).view(64, 12, 64)  ->  f(x[2, 3], w[3, 3]).view(...)

Dimensions belong together where they have one size. That is a guess, and is tried: a cut that the model itself
does not take is never asked about.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import map_aggregate

from torchparity.minifier.edits import Edit, applied, apply_edits, compute_of, graph_copy, rebuilt, runs_alike
from torchparity.minifier.gate import Gate
from torchparity.minifier.part import Part
from torchparity.repro.fills import DATA, RULES, Fill, filled, stride_order

Sizes = Mapping[int, int]


def shrink_shapes(gate: Gate) -> None:
    """Find the smallest size of every dimension. About 2 log2(n) queries where all shrink alike, more where not."""
    for size in powers(largest(gate.current)):
        if gate.fails(cut_all(gate.current, size)):
            break
    apply_edits(gate, [functools.partial(cut, old=size, new=1) for size in sizes_of(gate.current)])
    for size in sizes_of(gate.current):
        shrink_one(gate, size)


def shrink_one(gate: Gate, size: int) -> None:
    """Find the smallest size of one dimension: up from 1 by doubling, then between the last two by halving."""
    part = gate.current
    too_small = 0
    for new in powers(size):
        made = cut(part, old=size, new=new)
        if made is not None and gate.fails(made):
            size_found = new
            break
        too_small = new
    else:
        size_found = size
    while size_found - too_small > 1:
        middle = (size_found + too_small) // 2
        made = cut(part, old=size, new=middle)
        if made is not None and gate.fails(made):
            size_found = middle
        else:
            too_small = middle


def powers(size: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... below a size."""
    return itertools.takewhile(lambda power: power < size, (1 << place for place in itertools.count()))


def sizes_of(part: Part) -> list[int]:
    """Return the sizes of the inputs' dimensions that can be cut, the largest first."""
    return sorted({size for value in part.tensors() for size in value.shape if size > 1}, reverse=True)


def largest(part: Part) -> int:
    """Return the largest size of any dimension."""
    return max(sizes_of(part), default=1)


def cut_all(part: Part, size: int) -> Part:
    """Return a part in which no dimension that can be cut is larger than a size."""
    edits: list[Edit] = [functools.partial(cut, old=old, new=size) for old in sizes_of(part) if old > size]
    return applied(part, edits)


def cut(part: Part, *, old: int, new: int) -> Part | None:
    """Return a part in which dimensions of one size have another; None where the model does not take that."""
    changes = {old: new}
    if not any(old in value.shape for value in part.inputs if isinstance(value, torch.Tensor)):
        return None
    for literals, clamp in ((kept_literal, False), (list_literal, False), (any_literal, False), (any_literal, True)):
        graph_module = graph_copy(part)
        rewrite_literals(graph_module, functools.partial(literals, changes))
        inputs, fills = [], []
        for place, value in enumerate(part.inputs):
            made, fill = cut_input(value, part.fill_of(place), changes, limit=new if clamp else None)
            inputs.append(made)
            fills.append(fill)
        made_part = runs_alike(rebuilt(part, graph_module, inputs, fills), part)
        if made_part is not None:
            return made_part
    return None


def cut_input(value: Any, fill: Fill, changes: Sizes, *, limit: int | None) -> tuple[Any, Fill]:
    """Return an input cut to other sizes: its first elements, its order of strides and its fill kept."""
    if isinstance(value, int) and not isinstance(value, bool):
        return changes.get(value, value), fill
    if not isinstance(value, torch.Tensor):
        return value, fill
    clamped = limit is not None and value.dtype in (torch.int32, torch.int64)
    shape = tuple(changes.get(size, size) for size in value.shape)
    if shape == tuple(value.shape) and not clamped:
        return value, fill
    index = tuple(slice(0, size) for size in shape)
    data = value.detach()[index]
    again = filled(shape, value.dtype, fill) if fill in RULES else None
    if again is not None:
        data = again.to(value.device)
    if clamped and limit is not None:
        data, fill = data.remainder(limit), DATA
    return laid_out(data, value).requires_grad_(value.requires_grad), fill


def laid_out(data: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a dense copy of a tensor whose strides stand in the order of another's."""
    order = stride_order(like)
    dense = data.permute(order).contiguous()
    back = [order.index(axis) for axis in range(like.dim())]
    return dense.permute(back).clone(memory_format=torch.preserve_format)


# --- numbers in the graph that say a size --------------------------------------------------------


def rewrite_literals(graph_module: GraphModule, rewrite: Callable[[Any], Any]) -> None:
    """Rewrite the arguments of every node that computes."""
    for node in compute_of(graph_module):
        node.args = tuple(rewrite(argument) for argument in node.args)
        node.kwargs = {name: rewrite(argument) for name, argument in node.kwargs.items()}


def kept_literal(changes: Sizes, argument: Any) -> Any:
    """Leave arguments as they are."""
    return argument


def list_literal(changes: Sizes, argument: Any) -> Any:
    """Change the sizes in lists, which are shapes: view(x, [64, 768]) -> view(x, [2, 3])."""
    if isinstance(argument, list | tuple):
        return type(argument)(any_literal(changes, entry) for entry in argument)
    return argument


def any_literal(changes: Sizes, argument: Any) -> Any:
    """Change sizes wherever they stand, and products of them."""
    return map_aggregate(argument, lambda leaf: resized(changes, leaf))


def resized(changes: Sizes, value: Any) -> Any:
    """Return a number after the change: 64 -> 2 makes 128 a 4."""
    if type(value) is not int or value <= 1:
        return value
    for old, new in changes.items():
        if value % old == 0:
            return value // old * new
    return value
