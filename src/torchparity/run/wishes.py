"""From what a user asks for to a plan, or why it cannot mean anything."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from torchparity.compare.leaves import walk
from torchparity.errors import UsageError
from torchparity.records import Kind
from torchparity.run.loss import MEAN, PROJECTION, Loss
from torchparity.run.recipe import suggestion
from torchparity.run.step import OptimizerFactory, Plan
from torchparity.run.subject import Subject, loose_tensors, owned_modules

IGNORABLE = (Kind.STRIDE, Kind.ALIAS, Kind.REQUIRES_GRAD, Kind.DTYPE, Kind.LAYOUT, Kind.STRUCTURE)


def plan_for(
    subject: Subject,
    *,
    train: bool = False,
    backward: bool | None = None,
    steps: int | None = None,
    optimizer: OptimizerFactory | str | None = None,
    autocast: torch.dtype | str | None = None,
    loss: Loss | None = None,
    input_gradients: bool | None = None,
    seed: int = 0,
) -> Plan:
    """Turn what the user asked for into a plan, or say why it cannot mean anything."""
    wants_backward = train if backward is None else backward
    if steps is not None and steps < 1:
        raise UsageError(
            f"{steps} optimizer steps leave nothing to compare",
            hint="use --steps 1 or more, or leave it out",
        )
    factory = optimizer if optimizer is not None else subject.optimizer
    if steps is not None and factory is None:
        factory = "sgd"
    if factory is not None and not wants_backward:
        if optimizer is None and steps is None:
            factory = None
        else:
            raise UsageError(
                "optimizer steps need a backward pass",
                hint="add --train (train=True), or --backward to stay in eval mode",
            )
    chosen_loss = loss if loss is not None else subject.loss
    if isinstance(chosen_loss, str) and chosen_loss not in (PROJECTION, MEAN):
        raise UsageError(
            f"there is no loss named {chosen_loss!r}",
            hint=f"use {PROJECTION!r}, {MEAN!r} or a function of the outputs",
        )
    if input_gradients is None:
        input_gradients = wants_backward and not asks_for_gradients(subject)
    return Plan(
        training=train,
        backward=wants_backward,
        steps=steps or 1,
        optimizer=optimizer_factory(factory) if factory is not None else None,
        autocast=float_dtype(autocast),
        loss=chosen_loss if chosen_loss is not None else PROJECTION,
        seed=seed,
        input_gradients=input_gradients,
    )


def ignored_kinds(ignore: Iterable[str | Kind]) -> frozenset[Kind]:
    """Read the kinds of difference that the user does not mind: facts, never values."""
    known = [kind.value for kind in IGNORABLE]
    chosen = set()
    for name in ignore:
        value = name.value if isinstance(name, Kind) else name
        if value not in known:
            raise UsageError(f"a difference in {value!r} cannot be ignored", hint=f"these can: {', '.join(known)}")
        chosen.add(Kind(value))
    return frozenset(chosen)


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
    return lambda parameters: chosen(parameters)


def float_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype for autocast, by name or as given."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    names = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}
    found = getattr(torch, names.get(dtype, dtype), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"{dtype!r} is not a dtype for autocast", hint="use bfloat16 or float16")
    return found
