"""What a fault at one operation would do to all leaves at once, for every operation of a run, by the chain rule.

Let d be how far a run lies from the truth at all leaves, and J the derivative of the leaves by the result y of one
operation. A scale of y moves the leaves along J y; how far d goes in that direction is <d, J y> = <J' d, y>. One
backward pass from d gives J' d at every operation, and with it the answers for a scale, a shift, a wrong row or a wrong
column of each of them. Gradients are leaves too: what comes back through them is a second derivative, and
answers for the operations of the backward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from torchparity import torchapi
from torchparity.compare.leaves import walk
from torchparity.compare.matrices import Shape2d, Sums
from torchparity.request import PROJECTION
from torchparity.run.collect import differentiated
from torchparity.run.loss import tangents_of, value_of_loss
from torchparity.run.step import Runner

# Points with at most so many elements answer for each of them.
ELEMENTS = 1 << 16
# What one operation answers: "scale", "row mean" and their kin, each a vector.
Answers = dict[str, torch.Tensor]


class Taps(TorchFunctionMode):
    """Keeps the float results that have a derivative, with the names of the operations that gave them."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[str, torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call the function, and keep what it gives."""
        results = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        self.points += [(name, result) for result in torchapi.tree_leaves(results) if can_be_followed(result)]
        return results


def can_be_followed(value: Any) -> bool:
    """Tell whether a result is a plain float tensor that autograd knows the origin of."""
    plain = isinstance(value, torch.Tensor) and torchapi.is_plain(value) and value.is_floating_point()
    return bool(plain and value.numel() and value.requires_grad and value.grad_fn is not None)


class Adjoint:
    """One run of the model with its derivatives, from which answers are asked again and again."""

    def __init__(self, runner: Runner, model: Any) -> None:
        self.leaves: dict[str, torch.Tensor] = {}
        self.points: list[tuple[str, torch.Tensor]] = []
        taps = Taps()
        second = runner.plan.backward
        with torch.enable_grad(), taps, sdpa_kernel([SDPBackend.MATH]) if second else contextlib.nullcontext():
            outputs, inputs = runner.forward(model)
        for path, value in walk(outputs, "output"):
            if can_be_followed(value):
                self.leaves[path] = value
        self.points = [(f"the result of {name}", point) for name, point in taps.points]
        if second:
            self._differentiate(runner, outputs, differentiated(inputs, runner.state))
            self._leave_out_what_has_no_derivative()

    def _differentiate(self, runner: Runner, outputs: Any, wanted: Mapping[str, torch.Tensor]) -> None:
        """Add the gradients to the leaves, and what flows backward at each operation to the points."""
        tensors, tangents = tangents_of(outputs, seed=runner.plan.seed)
        if runner.plan.loss != PROJECTION:
            tensors = [value_of_loss(outputs, runner.plan.loss)]
            tangents = [torch.ones_like(tensors[0])]
        points = [point for _, point in self.points]
        if not tensors or not all(tensor.requires_grad for tensor in tensors):
            return
        found = torch.autograd.grad(
            tensors, [*points, *wanted.values()], tangents, create_graph=True, allow_unused=True
        )
        flows = zip(self.points, found, strict=False)
        self.points = self.points + [
            (name.replace("result", "gradient", 1), flow) for (name, _), flow in flows if can_be_followed(flow)
        ]
        gradients = zip(wanted, found[len(points) :], strict=True)
        self.leaves |= {path: gradient for path, gradient in gradients if can_be_followed(gradient)}

    def _leave_out_what_has_no_derivative(self) -> None:
        """Drop the gradients through which no second derivative can be had."""
        nothing = {path: torch.ones_like(leaf) for path, leaf in self.leaves.items()}
        try:
            self.answers(nothing)
        except (RuntimeError, NotImplementedError):
            leaves = self.leaves
            self.leaves = {path: leaf for path, leaf in leaves.items() if self._has_answers(path, nothing[path])}

    def _has_answers(self, path: str, moved: torch.Tensor) -> bool:
        try:
            self.answers({path: moved})
        except (RuntimeError, NotImplementedError) as error:
            if torchapi.is_out_of_memory(error):
                raise
            return False
        return True

    def answers(self, moved: Mapping[str, torch.Tensor]) -> list[Answers | None]:
        """Tell, at every point, how far leaves that are `moved` go in the directions in which the point moves them."""
        paths = [path for path in self.leaves if path in moved]
        largest = max((float(moved[path].abs().max()) for path in paths), default=0.0)
        if largest == 0.0:
            return [None] * len(self.points)
        tops = [self.leaves[path] for path in paths]
        flows = [
            (moved[path].reshape(top.shape) / largest).to(top.dtype) for path, top in zip(paths, tops, strict=True)
        ]
        found = torch.autograd.grad(
            tops, [point for _, point in self.points], flows, retain_graph=True, allow_unused=True
        )
        return [
            answers_of(point.detach(), flow.detach(), largest) if flow is not None else None
            for (_, point), flow in zip(self.points, found, strict=True)
        ]


def answers_of(point: torch.Tensor, flow: torch.Tensor, largest: float) -> Answers:
    """Sum what flows back to a point, and its product with the point: rows, columns, all of it."""
    layout = Shape2d.of(tuple(point.shape))
    sums = Sums.zeros(layout, point.device)
    everything = (slice(None), slice(None))
    values = [value.float().reshape(layout.rows, layout.columns) for value in (flow, point)]
    sums.add(*everything, *values)
    answers = {name: vector * largest for name, vector in sums.vectors().items()}
    if layout.total <= ELEMENTS:
        answers["element"] = values[0].reshape(-1).double() * largest
    return answers
