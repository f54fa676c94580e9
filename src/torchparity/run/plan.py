"""What a run does with a model: the plan that a request makes for it, or why it cannot mean anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchparity.compare.leaves import walk
from torchparity.errors import UsageError
from torchparity.request import MEAN, PROJECTION, Request, suggestion
from torchparity.run.loss import Loss
from torchparity.run.subject import Subject, loose_tensors, owned_modules

OptimizerFactory = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run does with the model. `differentiates` and `inference` say which gradient mode it is called in."""

    training: bool = False
    backward: bool = False
    differentiates: bool = True
    inference: bool = False
    steps: int = 1
    optimizer: OptimizerFactory | None = None
    autocast: torch.dtype | None = None
    loss: Loss = PROJECTION
    seed: int = 0
    input_gradients: bool = False
    random: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return the plan as plain data, by the names of the request's options."""
        return {
            "train": self.training,
            "backward": self.backward,
            "no_grad": not self.differentiates and not self.inference,
            "inference_mode": self.inference,
            "steps": self.steps if self.optimizer is not None else None,
            "optimizer": getattr(self.optimizer, "__name__", None),
            "autocast": str(self.autocast).removeprefix("torch.") if self.autocast is not None else None,
            "loss": self.loss
            if isinstance(self.loss, str)
            else getattr(self.loss, "__name__", type(self.loss).__name__),
            "input_gradients": self.input_gradients,
            "seed": self.seed,
        }


def settled(request: Request, subject: Subject, *, learns: bool = True) -> Request:
    """Return a request that leaves no gradient open: a backward pass is run where an input asks for a gradient.

    The gradient mode is the caller's, unless something else was asked for. Of a compiler that `learns` nothing no
    backward pass is expected.
    """
    if request.differentiates and not request.gradients and not torch.is_grad_enabled():
        inference = torch.is_inference_mode_enabled()
        request = replace(request, no_grad=not inference, inference_mode=inference)
    if request.backward is not None or request.train:
        return replace(request, backward=request.gradients)
    asked = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for _, leaf in walk(subject.calls()))
    return replace(request, backward=asked and learns and request.differentiates)


def plan_of(request: Request, subject: Subject) -> Plan:
    """Turn what the user asked for into a plan, or say why it cannot mean anything."""
    require_numbers(subject)
    request = settled(request, subject)
    factory = request.optimizer if request.optimizer is not None else subject.optimizer
    if request.steps is not None and factory is None:
        factory = "sgd"
    if factory is not None and not request.gradients:
        if request.optimizer is not None or request.steps is not None:
            raise UsageError(
                "optimizer steps need a backward pass",
                hint="add --train (train=True), or --backward to stay in eval mode",
            )
        factory = None
    loss = request.loss if request.loss is not None else subject.loss
    if isinstance(loss, str) and loss not in (PROJECTION, MEAN):
        raise UsageError(
            f"there is no loss named {loss!r}", hint=f"use {PROJECTION!r}, {MEAN!r} or a function of the outputs"
        )
    input_gradients = request.input_gradients
    if input_gradients is None:
        input_gradients = request.gradients and not asks_for_gradients(subject)
    return Plan(
        training=request.train,
        backward=request.gradients,
        differentiates=request.differentiates,
        inference=request.inference_mode,
        steps=request.steps or 1,
        optimizer=optimizer_factory(factory) if factory is not None else None,
        autocast=float_dtype(request.autocast),
        loss=loss if loss is not None else PROJECTION,
        seed=request.seed,
        input_gradients=input_gradients,
    )


def require_numbers(subject: Subject) -> None:
    """Raise where a model has parameters that hold nothing yet, or nothing ever."""
    modules = owned_modules(subject.model).items()
    named = [(f"{root}.{name}".strip("."), value) for root, module in modules for name, value in state_of(module)]
    lazy = [name for name, value in named if torch.nn.parameter.is_lazy(value)]
    if lazy:
        raise UsageError(
            f"{lazy[0]} is not made yet: a lazy module makes its parameters at its first call",
            hint="call the model once on its inputs before it is checked",
        )
    tensors = [value for _, value in named]
    tensors += [leaf for _, leaf in walk(subject.calls()) if isinstance(leaf, torch.Tensor)]
    if tensors and all(tensor.is_meta for tensor in tensors):
        raise UsageError(
            "the model and its inputs are on the meta device: there are no numbers to compare",
            hint='make them on a real one: model.to_empty(device="cpu"), and then its weights',
        )


def state_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters and buffers of a module by name."""
    return [*module.named_parameters(), *module.named_buffers()]


def asks_for_gradients(subject: Subject) -> bool:
    """Tell whether any parameter or input asks for a gradient; where none does, the float inputs are made to."""
    modules = owned_modules(subject.model).values()
    tensors: list[torch.Tensor] = [parameter for module in modules for parameter in module.parameters()]
    tensors += loose_tensors(subject.model).values()
    tensors += [leaf for _, leaf in walk(subject.calls()) if isinstance(leaf, torch.Tensor)]
    return any(tensor.requires_grad for tensor in tensors)


def optimizer_factory(optimizer: OptimizerFactory | str) -> OptimizerFactory:
    """Return a factory for a torch.optim class by name (any case), or the factory that was given."""
    if not isinstance(optimizer, str):
        return optimizer
    classes: dict[str, Any] = {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    chosen = classes.get(optimizer.lower())
    if chosen is None:
        known = sorted(classes)
        raise UsageError(
            f"torch.optim has no optimizer named {optimizer!r}",
            hint=suggestion(optimizer.lower(), known, f"known are {', '.join(known)}"),
        )
    closure = inspect.signature(chosen.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise UsageError(
            f"{chosen.__name__} calls the model itself, through a closure",
            hint="use an optimizer whose step needs no closure",
        )
    factory: OptimizerFactory = chosen
    return factory


def float_dtype(name: str | None) -> torch.dtype | None:
    """Return the dtype of a name, for autocast."""
    found = getattr(torch, name, None) if name is not None else None
    if name is not None and found not in (torch.bfloat16, torch.float16):
        raise UsageError(f"{name!r} is not a dtype for autocast", hint="use bfloat16 or float16")
    return found
