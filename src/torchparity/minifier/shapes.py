"""Smaller shapes: every dimension of one size is cut to another one, all through the graph.

    f(x[64, 768], w[768, 768]).view(64, 12, 64)  ->  f(x[2, 3], w[3, 3]).view(...)

Dimensions belong together where they have one size. That is a guess, and is tried: a cut that the model itself
does not take is never asked about.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import map_aggregate

from torchparity.graphs.part import Part
from torchparity.minifier.edits import apply_edits, compute_of, graph_copy, rebuilt, refill, runs_alike
from torchparity.minifier.gate import Gate
from torchparity.repro.fills import DATA, RULES, Fill, filled, stride_order

Sizes = Mapping[int, int]
# Dimensions as pairs of an input's place and an axis.
Axes = tuple[tuple[int, int], ...]
INDICES = (torch.int32, torch.int64)


def shrink_shapes(gate: Gate) -> None:
    """Find the smallest size of every dimension. About 2 log2(n) queries where all shrink alike, more where not.

    Every question is made from the part that this begins with, so that two dimensions which have come to the same
    size are still two.
    """
    start = gate.current
    sizes = {size: size for size in sizes_of(start)}
    limit = first_that_fails(
        gate, powers(max(sizes, default=1)), lambda limit: cut(start, {size: min(size, limit) for size in sizes})
    )
    if limit is not None:
        sizes = {size: min(size, limit) for size in sizes}
    kept = gate.needed(list(sizes), lambda kept: cut(start, {old: sizes[old] if old in kept else 1 for old in sizes}))
    sizes = {old: new if old in kept else 1 for old, new in sizes.items()}
    for old in sizes:
        sizes[old] = least(gate, sizes[old], functools.partial(cut_one, start, sizes, old))
    apply_edits(gate, [functools.partial(cut_axes, axes=axes) for axes in axes_of(gate.current)])


def cut_one(part: Part, sizes: Sizes, old: int, new: int) -> Part | None:
    """Return a part with sizes, and another one for one of them."""
    return cut(part, {**sizes, old: new})


def first_that_fails(gate: Gate, sizes: Iterable[int], made: Callable[[int], Part | None]) -> int | None:
    """Return the first size with which a part fails, if any; the next is asked about beside each."""
    made, upcoming = functools.cache(made), list(sizes)
    for place, size in enumerate(upcoming):
        gate.ahead(*(made(entry) for entry in upcoming[place : place + 2]))
        part = made(size)
        if part is not None and gate.fails(part):
            return size
    return None


def least(gate: Gate, size: int, made: Callable[[int], Part | None]) -> int:
    """Return the smallest size that fails: up from 1 by doubling, then between the last two by halving."""
    made = functools.cache(made)
    found = first_that_fails(gate, powers(size), made)
    too_small = max((power for power in powers(found or size)), default=0)
    size = found or size
    while size - too_small > 1:
        middle = (size + too_small) // 2
        gate.ahead(made(middle), made((middle + too_small) // 2) if middle - too_small > 1 else None)
        part = made(middle)
        if part is not None and gate.fails(part):
            size = middle
        else:
            too_small = middle
    return size


def powers(size: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... below a size."""
    return itertools.takewhile(lambda power: power < size, (1 << place for place in itertools.count()))


def sizes_of(part: Part) -> list[int]:
    """Return the sizes of the inputs' dimensions that can be cut, the largest first."""
    tensors = [value for value in part.inputs if isinstance(value, torch.Tensor)]
    return sorted({size for value in tensors for size in value.shape if size > 1}, reverse=True)


def axes_of(part: Part) -> list[Axes]:
    """Return sets of dimensions that may be cut apart from others of their size: one of one input, or one of all."""
    shapes = {place: value.shape for place, value in enumerate(part.inputs) if isinstance(value, torch.Tensor)}
    single = [((place, axis),) for place, shape in shapes.items() for axis, size in enumerate(shape) if size > 1]
    places = sorted({(axis, size) for shape in shapes.values() for axis, size in enumerate(shape) if size > 1})
    common = [
        tuple((place, axis) for place, shape in shapes.items() if len(shape) > axis and shape[axis] == size)
        for axis, size in places
    ]
    return [*(axes for axes in common if len(axes) > 1), *single]


def cut_all(part: Part, limit: int) -> Part:
    """Return a part in which no dimension that can be cut is larger than a limit."""
    return cut(part, {size: min(size, limit) for size in sizes_of(part)}) or part


def cut(part: Part, sizes: Sizes) -> Part | None:
    """Return a part in which dimensions of some sizes have others, as far as the model takes that; None where not."""
    changes: dict[int, int] = {}
    made = None
    for old, new in sizes.items():
        if new != old:
            found = cut_once(part, {**changes, old: new})
            if found is not None:
                changes[old] = new
                made = found
    return made


def cut_once(part: Part, changes: Sizes) -> Part | None:
    """Return a part with just these changes; None where the model does not take them."""
    limit = min(changes.values())
    for literals, clamp in ((kept_literal, False), (list_literal, False), (any_literal, False), (any_literal, True)):
        graph_module = graph_copy(part)
        rewrite_literals(graph_module, functools.partial(literals, changes))
        inputs, fills = [], []
        for place, value in enumerate(part.inputs):
            made, fill = cut_input(value, part.fill_of(place), changes, limit=limit if clamp else None)
            inputs.append(made)
            fills.append(fill)
        made_part = runs_alike(rebuilt(part, graph_module, inputs, fills), part)
        if made_part is not None:
            return made_part
    return None


def cut_axes(part: Part, *, axes: Axes) -> Part | None:
    """Return a part in which some dimensions are 1, whatever others of their size are; clamped where it must be."""
    for clamp in (False, True):
        made = part
        for place, axis in axes:
            value, fill = part.inputs[place], part.fill_of(place)
            shape = tuple(1 if number == axis else size for number, size in enumerate(made.inputs[place].shape))
            data = laid_out(cut_data(made.inputs[place], fill, shape), value).requires_grad_(value.requires_grad)
            made = refill(made, place, data, fill)
        if clamp:
            for place, value in enumerate(made.inputs):
                if isinstance(value, torch.Tensor) and value.dtype in INDICES:
                    made = refill(made, place, value.clamp(max=0))
        found = runs_alike(made, part)
        if found is not None:
            return found
    return None


def cut_input(value: Any, fill: Fill, changes: Sizes, *, limit: int | None) -> tuple[Any, Fill]:
    """Return an input cut to other sizes: its first elements, its order of strides and its fill kept."""
    if isinstance(value, int) and not isinstance(value, bool):
        return changes.get(value, value), fill
    if not isinstance(value, torch.Tensor):
        return value, fill
    clamped = limit is not None and value.dtype in INDICES
    shape = tuple(changes.get(size, size) for size in value.shape)
    if shape == tuple(value.shape) and not clamped:
        return value, fill
    data = cut_data(value, fill, shape)
    if clamped and limit is not None:
        data, fill = data.clamp(max=limit - 1), DATA  # Negative ones stay: they often mean `no such element`.
    return laid_out(data, value).requires_grad_(value.requires_grad), fill


def cut_data(value: torch.Tensor, fill: Fill, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the first elements of a tensor, or the rule's own for the new shape where a rule filled it."""
    again = filled(shape, value.dtype, fill) if fill in RULES else None
    if again is not None:
        return again.to(value.device)
    return value.detach()[tuple(slice(0, size) for size in shape)]


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
    for old in sorted(changes, reverse=True):
        if value % old == 0:
            return changes[old] * (1 if value == old else resized(changes, value // old))
    return value
