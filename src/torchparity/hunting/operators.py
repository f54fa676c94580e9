"""Openings from PyTorch's operator database: every operator with its own samples, as lines that people could write."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchparity import torchapi
from torchparity.hunting.openings import FILE, Given, Opening, write_openings
from torchparity.repro.fills import stride_order
from torchparity.repro.values import literal

OPERATORS_JOB = "torchparity.hunting.operators:operators_job"
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
# Of each operator so many samples, from all over its list.
SAMPLES = 8
MOST_ELEMENTS = 4096
# Results that are drawn, that eager leaves open, or that depend on the order in which equal indices are written; and
# what trusts its caller (indices inside of a tensor, boundaries in order, pivots, statistics as long as there are
# channels, parts that nobody writes to though they are no copies): varied inputs may be others.
OPEN = re.compile(
    r"empty|resize|rand|bernoulli|multinomial|normal\b|normal_|dropout|uniform|exponential|cauchy|geometric|rrelu|"
    r"fractional_max|set_$|pin_memory|item$|tolist|^scatter$|index_copy|index_put|^put$|max_unpool|"
    r"unsafe|native_batch_norm|_batch_norm_with_update|searchsorted|bucketize|histogram|lu_solve|lu_unpack|ldl_solve"
)
NAMES = "abcdefghijklmnopqrstuvwxyz"


def operators_job(payload: Mapping[str, Any], announce: Callable[[str], None]) -> int:
    """Write the openings of all operators to a folder; return how many there are. It takes a worker half a minute."""
    return write_openings(Path(payload["folder"]) / FILE, openings_of_operators())


def openings_of_operators() -> Iterator[Opening]:
    """Yield openings: some samples of every operator whose result eager defines."""
    for name, samples in torchapi.operator_samples(DTYPES):
        if OPEN.search(name):
            continue
        step = max(1, math.ceil(len(samples) / SAMPLES))
        seen = set()
        for args, kwargs in samples[::step]:
            for opening in openings_of(name, args, kwargs):
                key = opening.lines, repr(opening.inputs)
                if key not in seen:
                    seen.add(key)
                    yield opening


def openings_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Opening]:
    """Yield a sample as a line: the function, or the method; and what writes in place, where there is such a method."""
    inputs: dict[str, Given] = {}
    if kwargs.get("unsafe"):
        return  # Nobody looks whether its arguments make sense.
    try:
        texts = [text_of(value, inputs) for value in args]
        texts += [f"{key}={text_of(value, inputs)}" for key, value in kwargs.items()]
    except Unsaid:
        return
    if not inputs:
        return
    rest = ", ".join(texts[1:])
    calls = [f"torch.{name}({', '.join(texts)})"] if has_function(name) else [f"{texts[0]}.{name}({rest})"]
    if texts[0] in inputs and hasattr(torch.Tensor, f"{name}_"):
        calls.append(f"{texts[0]}.clone().{name}_({rest})")
    for call in calls:
        results = results_of(call, inputs, args, kwargs)
        if results:
            yield Opening(name=f"operator:{name}", inputs=inputs, lines=(f"{', '.join(results)} = {call}",))


class Unsaid(Exception):
    """An argument that has no place in a program: too large, not finite, or without a text."""


def text_of(value: Any, inputs: dict[str, Given]) -> str:
    """Return an argument as text, and note the tensors in it as inputs."""
    if isinstance(value, torch.Tensor):
        if len(inputs) == len(NAMES) or value.layout is not torch.strided or value.numel() > MOST_ELEMENTS:
            raise Unsaid
        name = NAMES[len(inputs)]
        inputs[name] = given_of(value)
        return name
    if isinstance(value, list | tuple) and any(isinstance(part, torch.Tensor) for part in value):
        return f"[{', '.join(text_of(part, inputs) for part in value)}]"
    text = literal(value)
    if text is None or "inf" in text or "nan" in text:
        raise Unsaid
    return text


def given_of(value: torch.Tensor) -> Given:
    """Return what an input looks like."""
    plain = value.detach()
    low, high = -4, 4
    if plain.numel() and not plain.is_complex() and plain.dtype is not torch.bool:
        finite = plain[torch.isfinite(plain)]
        if finite.numel():
            low, high = math.floor(float(finite.min())), math.ceil(float(finite.max()))
    order = tuple(stride_order(plain))
    return Given(
        shape=tuple(plain.shape),
        dtype=str(plain.dtype).removeprefix("torch."),
        low=max(low, -64),
        high=min(high, 64) if plain.is_floating_point() else high,
        order=order if order != tuple(range(plain.dim())) else (),
        gradient=value.requires_grad,
    )


def has_function(name: str) -> bool:
    """Tell whether torch has a function of that name."""
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return callable(found)


def results_of(call: str, inputs: Mapping[str, Given], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return names for the tensors that a call gives with its own sample; none where it gives something else."""
    tensors = iter(
        value for value in torchapi.tree_leaves([list(args), dict(kwargs)]) if isinstance(value, torch.Tensor)
    )
    namespace = {"torch": torch, **{name: value.clone() for name, value in zip(inputs, tensors, strict=False)}}
    try:
        found = eval(call, namespace)
    except Exception:  # noqa: BLE001 - a form that eager does not take is none
        return []
    parts = found if isinstance(found, list | tuple) else [found]
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        return []
    return ["r0"] if isinstance(found, torch.Tensor) else [f"p{place}" for place in range(len(parts))]
