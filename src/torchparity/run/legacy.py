"""`same_two_models`: the check of Dynamo, with its arguments and its meaning."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.leaves import walk
from torchparity.compare.legacy import same
from torchparity.run.loss import reduce_to_mean
from torchparity.run.reference import Reference, plain_kernels
from torchparity.torchapi import dynamo_repro_settings

log = logging.getLogger(__name__)


def same_two_models(
    gm: Callable[..., Any],
    opt_gm: Callable[..., Any],
    example_inputs: Sequence[Any],
    only_fwd: bool = False,
    *,
    require_fp64: bool = False,
    ignore_non_fp: bool = False,
) -> bool:
    """Tell whether two models give the same outputs and gradients within torch's fixed repro tolerance.

    As in the original, an exception of the second model means "not this failure": True.
    """
    settings = dynamo_repro_settings()
    expected = run_forward_and_backward(gm, example_inputs, only_fwd)
    truth = None
    if settings["same_two_models_use_fp64"]:
        truth = _float64(gm, example_inputs, only_fwd, require_fp64=require_fp64)
    try:
        actual = run_forward_and_backward(opt_gm, example_inputs, only_fwd)
    except Exception:
        log.exception("the second model raises: taken for another failure, as the original does")
        return True
    return same(
        expected,
        actual,
        truth,
        tol=settings["repro_tolerance"],
        equal_nan=True,
        ignore_non_fp=ignore_non_fp,
    )


def _float64(model: Callable[..., Any], inputs: Sequence[Any], only_forward: bool, *, require_fp64: bool) -> Any:
    """Return the model's results in float64, or None where there are none."""
    reference = Reference(plain=True)
    try:
        with plain_kernels(), reference:
            shadowed = run_forward_and_backward(model, inputs, only_forward)
        return replace_tensors(shadowed, reference)
    except Exception as error:
        if require_fp64:
            raise RuntimeError("there is no float64 reference for this model") from error
        log.warning("there is no float64 reference: %s", error)
        return None


def replace_tensors(value: Any, reference: Reference) -> Any:
    """Return the same structure with float64 values in place of float tensors."""
    if isinstance(value, torch.Tensor):
        promoted = reference.value(value)
        return value if promoted is None else promoted
    if isinstance(value, dict):
        return {key: replace_tensors(item, reference) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(replace_tensors(item, reference) for item in value)
    return value


def run_forward_and_backward(model: Callable[..., Any], inputs: Sequence[Any], only_forward: bool = False) -> Any:
    """Run a fresh copy of a model on fresh inputs; return outputs, gradients, parameters and buffers."""
    model = copy.deepcopy(model)
    args = [fresh_input(value) for value in inputs]
    if isinstance(model, torch.nn.Module):
        model.zero_grad(set_to_none=True)
    outputs = model(args) if torchapi.is_boxed(model) else model(*args)
    if only_forward:
        return outputs
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for _, leaf in walk(outputs)):
        reduce_to_mean(outputs).backward()
    results = [outputs]
    if isinstance(model, torch.nn.Module):
        prefix = "_orig_mod."
        named = [(name.removeprefix(prefix), value) for name, value in model.named_parameters()]
        results.append({f"{name}.grad": gradient_or_zero(value) for name, value in named})
        results.append(dict(named))
        results.append({name.removeprefix(prefix): value for name, value in model.named_buffers()})
    results += [value.grad for value in args if isinstance(value, torch.Tensor)]
    return results


def fresh_input(value: Any) -> Any:
    """Clone a tensor, keeping its gradient flag."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def gradient_or_zero(parameter: torch.Tensor) -> torch.Tensor:
    """Treat no gradient as a gradient of zero."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
