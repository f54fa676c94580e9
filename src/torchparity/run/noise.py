"""Rounding noise: run the model with every rounding moved by about one unit in the last place.

Stochastic arithmetic on bit patterns: adding -1, 0 or 1 to the integer that holds a float moves it
by one unit in its last place, in any dtype. One result in four is moved: half a unit root mean
square, a little more than the 0.29 of correct rounding. A value whose low half of the mantissa is zero (an
integer, a mask, a power of two, Inf, NaN) is taken for exact and is left alone, so that the noise
does not break `mask == 1`. Amplified noise, which is asked where something differs, looks closer: a value that
float64 would not have given is no exact one, though it looks like it (the cosine of a small number in float16). Inputs
and parameters are exact and are left alone too: a compiler has no
business to round them. Random integers are drawn once and used from random offsets.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchparity import torchapi
from torchparity.run.bank import BANK_SIZE, NoiseBank
from torchparity.run.cancelled import Cancelled
from torchparity.run.casts import spoil, undefined_in
from torchparity.run.centred import move_by_means
from torchparity.run.lookalikes import Twins, looks_exact, restore_lost
from torchparity.run.mode import Watch, fresh_outputs, written_tensors
from torchparity.run.operators import ALLOCATES, Traits, float_tensors, poison, terms
from torchparity.run.unrounded import as_written

# Perturbed at a time: little enough to stay in a core's cache over the passes that it takes. A GPU has no use for that.
PERTURBED = {"cpu": 1 << 17, "other": 1 << 26}
# Integers between -n and n have a spread of about n / sqrt(3); half a unit times n wants n * 0.87.
SPREAD = 0.87
# A sum may be one chain of additions, as short as this and as long as the compiler cares to make it. Varied
# terms err by 0.15 * sqrt(n) units of the sum's scale; equal ones (a mean's gradient) all round the same way,
# and err by 0.06 * n. Beyond the longest chains inductor itself cascades. Figures: docs/design/noise.md.
SHORTEST_CHAIN = 4
LONGEST_CHAIN = 1 << 15
LONGEST_EQUAL_CHAIN = 1 << 13
# Share of equal neighbours, in a corner of a tensor, from which its terms count as equal.
EQUAL_SHARE = 0.08
CORNER = 16
# Matrix products are added up in blocks, on every device.
BLOCKED = 64
# Where a GPU may shorten the factors of a product to 11 bits (TF32), each is off by so many float32 units at most where
# it is rounded, and by as many again where it is cut off. A weight is off by the same everywhere it is used, so that
# the factors themselves are moved: moved results would average out in a mean, which these errors do not.
SHORTENED = 1 << 12
SHORTENING = ("cuda",)
# Arguments that are factors; all of them where nothing is said.
FACTORS = {
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv"), (1, 2)),
    **dict.fromkeys(("convolution", "cudnn_convolution", "_convolution"), (0, 1)),
}
# Functions that torch's own vector code approximates by a polynomial whose error, 1.5e-7, is one of a result near 1
# (Abramowitz and Stegun 7.1.26); a result near 0 has it too.
APPROXIMATED = ("erf",)
# Kernels that weigh a few neighbours by numbers that they round for themselves: a result of 1 or 0, exact as it looks,
# is one of many roundings. Where float64 tells the truth, eager's error is measured; in float64 nothing tells it.
WEIGHED = re.compile(r"^_?upsample_(?!nearest)|^grid_sampler")
# Random integers between this and its negative make numbers between 0 and 1.
EVENLY = 1 << 12
# Between this and its inverse a float32 may be squared.
WITHIN_RANGE = 1e-15
# float dtype -> (integer that holds it, mask of the low half of the mantissa)
BITS = {
    torch.float64: (torch.int64, (1 << 26) - 1),
    torch.float32: (torch.int32, (1 << 12) - 1),
    torch.float16: (torch.int16, (1 << 5) - 1),
    torch.bfloat16: (torch.int16, (1 << 3) - 1),
}


def noise_kernels(kind: str) -> Any:
    """Return the same in one pass over memory, for devices that Triton knows; None where it is not to be had."""
    return torchapi.working_kernels(kind, "torchparity.run.kernels")


class Noise(Watch):
    """Perturbs the result of every operation that rounds."""

    def __init__(
        self, bank: NoiseBank, *, run: int, amplitude: float, replay: list[torch.Tensor], thorough: bool = False
    ) -> None:
        super().__init__()
        self.bank = bank
        self.amplitude = amplitude
        # Whether values that look exact are held against float64: it costs a second run of every operation.
        self.thorough = thorough or amplitude > 1
        self.offsets = random.Random(bank.seed * 1_000_003 + run)
        # Numbers of their own: what is drawn for a mean, or for a number of Python's, changes nothing elsewhere.
        self.means = random.Random(f"means {bank.seed} {run}")
        self.steps = random.Random(f"steps {bank.seed} {run}")
        self.replay = iter(replay)
        self.saw_random = False
        self.shortens = False
        # How many results are integers made of floats that they cannot hold.
        self.undefined = 0

    def operate(self, func: Callable[..., Any], traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and move what it rounded."""
        rounds = not (traits.view or traits.exact or traits.random)
        twins = Twins.of(func, traits, args, kwargs) if self.thorough and rounds else None
        if traits.contraction and rounds and torchapi.allows_tf32(traits.name):
            args = self._shortened(traits.name, args)
        cancelled = Cancelled.of(func, traits, args, kwargs) if rounds else None
        unrounded = as_written(func, traits, args, kwargs, self.steps.randint(-1, 1)) if traits.decides else []
        outputs = func(*args, **kwargs)
        if traits.name in ALLOCATES:
            poison(outputs, finite=True)
            return outputs
        undefined = undefined_in(traits.name, args, kwargs, outputs)
        if undefined is not None:
            self.undefined += 1
            spoil(*undefined)
        self.saw_random |= traits.random
        if traits.replayed:
            self._replay(outputs)
        if traits.view or traits.exact or (traits.random and traits.name != "native_dropout"):
            return outputs
        targets = float_tensors(written_tensors(traits, args, kwargs))
        targets += float_tensors(fresh_outputs(outputs, args, kwargs))
        if targets:
            inputs = float_tensors((args, kwargs))
            for target, other in zip(targets, unrounded, strict=False):
                target.copy_(other)
            exact = [exact_looking(target) for target in targets] if twins is not None else []
            for target in targets:
                self._perturb_result(traits, inputs, target)
            move_by_means(traits, args, kwargs, outputs, self._steps_of_means, self.amplitude)
            if cancelled is not None:
                cancelled.move(targets, self._steps_of_means, torch.finfo(torch.float64).eps * self.amplitude)
            if twins is not None and any(mask is not None for mask in exact):
                self._move_exact(twins, targets, exact)
        return outputs

    def _move_exact(self, twins: Twins, targets: list[torch.Tensor], exact: list[torch.Tensor | None]) -> None:
        """Move values that look exact and are not: float64 gives another one for the same inputs."""
        steps, kept = max(1, round(self.amplitude * SPREAD)), None
        for place, (target, mask, twin) in enumerate(zip(targets, exact, twins.widest(), strict=False)):
            if mask is None or twin.shape != target.shape:
                continue
            integer, _ = BITS[target.dtype]
            inexact = mask & (twin != target.double())
            lost = inexact & (target == 0)
            drawn = self._slice(target.device, integer, steps, target.numel()).reshape(target.shape)
            target.view(integer).add_(drawn * (inexact & ~lost))
            if bool(lost.any()):
                kept = twins.kept() if kept is None else kept
                if place < len(kept) and kept[place].shape == target.shape:
                    count = target.numel()
                    drawn = self._slice(target.device, torch.int32, EVENLY, count).reshape(target.shape).abs()
                    restore_lost(target, lost, kept[place], (drawn + 0.5) / (EVENLY + 1))

    def _shortened(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments whose float32 factors are as far off as a shorter format may make them."""

        def shorten(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.numel() == 0:
                return value
            if value.device.type not in SHORTENING or not torchapi.in_memory(value):
                return value
            integer, mask = BITS[value.dtype]
            self.shortens = True
            most = round(SHORTENED * self.amplitude)
            moved, size = value.clone(), value.abs()
            bits = moved.view(integer)
            lowest, highest = within(value.dtype, 2 * most)
            rounds = (bits & mask).ne_(0) * ((size > lowest) & (size < highest))
            drawn = self._slice(value.device, integer, most, value.numel()).reshape(value.shape)
            bits.add_((drawn - self.offsets.randrange(most)) * rounds)
            return moved

        places = FACTORS.get(
            name.removesuffix("_"), range(int(name.endswith("_")), len(args))
        )  # Not what is written to.
        return tuple(shorten(value) if place in places else value for place, value in enumerate(args))

    def _replay(self, outputs: Any) -> None:
        for output in torchapi.tree_leaves(outputs):
            recorded = next(self.replay, None)
            if recorded is not None and recorded.shape == output.shape:
                output.copy_(recorded)

    def _perturb_result(self, traits: Traits, inputs: list[torch.Tensor], target: torch.Tensor) -> None:
        if not torchapi.in_memory(target):
            return
        if target.is_complex():
            target = torch.view_as_real(target)
        if target.dtype not in (torch.float32, torch.float64) or target.numel() == 0:
            self.perturb(target)  # Sums of 16-bit floats are kept in 32 bits: one rounding at the end.
            return
        if target.dtype == torch.float64 and inputs and WEIGHED.match(traits.name):
            typical = float(root_mean_square(inputs[0], tuple(range(inputs[0].dim()))))
            scale = target.abs().clamp_(min=typical)
            target.addcmul_(self._steps(target, target.shape), scale, value=2 * self._unit(target))
            return
        if traits.name in APPROXIMATED:
            self.perturb(target, chain=1.0, typical=1.0)
            return
        count = terms(traits, inputs, target)
        size = 1.0 + math.log2(count) / 4
        if count < SHORTEST_CHAIN:
            self.perturb(target, size)
            return
        length = min(count, BLOCKED) if traits.contraction else count
        equal = share_of_equal_terms(max(inputs, key=torch.Tensor.numel)) > EQUAL_SHARE
        clumsy = 0.12 * min(length, LONGEST_EQUAL_CHAIN), 0.3 * math.sqrt(min(length, LONGEST_CHAIN))
        chain = torch.where(equal, *clumsy)
        if traits.normalised and target.dim() > 1:
            self.perturb(target, size)
            self._perturb_groups(traits, target, scale=chain, shift=torch.where(equal, chain, size))
        else:
            self.perturb(target, size, chain=chain)

    def _perturb_groups(
        self, traits: Traits, target: torch.Tensor, *, scale: torch.Tensor, shift: torch.Tensor
    ) -> None:
        """Move whole rows (channels, for batch norm) together.

        An error in their deviation or denominator, which is a sum, scales them; an error in their
        mean shifts them.
        """
        axes = [1] if traits.by_channel else list(range(target.dim() - 1))
        shape = [length if axis in axes else 1 for axis, length in enumerate(target.shape)]
        others = tuple(axis for axis in range(target.dim()) if axis not in axes)
        moved = self._steps(target, shape) * root_mean_square(target, others)
        factor = 1.0 + self._steps(target, shape) * (scale * self._unit(target)).to(target.dtype)
        target.mul_(factor).add_(moved * (shift * self._unit(target)).to(target.dtype))

    def _unit(self, like: torch.Tensor) -> float:
        return torch.finfo(like.dtype).eps * self.amplitude

    def _steps(self, like: torch.Tensor, shape: Sequence[int], offsets: random.Random | None = None) -> torch.Tensor:
        """Half a unit, root mean square, normally distributed: a few numbers must show what many would."""
        drawn = self._slice(like.device, like.dtype, 0, math.prod(shape), offsets)
        return drawn.reshape(tuple(shape))

    def _steps_of_means(self, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return self._steps(like, shape, self.means)

    def perturb(
        self,
        target: torch.Tensor,
        size: float = 1.0,
        *,
        chain: torch.Tensor | float | None = None,
        typical: float | None = None,
    ) -> None:
        """Move a tensor in place by `size` units in the last place or so.

        `chain` moves it besides by so many units of its typical size (measured, unless given): a sum may be made by
        adding its terms one after the other, which is correct too, only clumsier.
        """
        if target.dtype not in BITS or not torchapi.in_memory(target) or target.numel() == 0:
            return
        for axis, stride in enumerate(target.stride()):
            if stride == 0 and target.shape[axis] > 1:  # An expanded axis is one row seen many times.
                target = target.narrow(axis, 0, 1)
        dense = _dense(target)
        if dense is None and torchapi.overlaps_itself(target):
            return
        steps = max(1, round(size * self.amplitude * SPREAD))
        kernels = noise_kernels(target.device.type)
        if kernels is not None and dense is not None:
            seed, mask = self.offsets.getrandbits(31), BITS[target.dtype][1]
            bounds = within(target.dtype, steps)
            if chain is not None:
                chain = torch.as_tensor(chain, device=target.device) * self._unit(target)
            kernels.move(dense, seed=seed, mask=mask, steps=steps, within=bounds, chain=chain, typical=typical)
            return
        if chain is not None and typical is None:
            typical = float(root_mean_square(target, tuple(range(target.dim()))))
        at_once = PERTURBED.get(target.device.type, PERTURBED["other"])
        blocks = (target,) if dense is None else dense.split(at_once)
        for block in blocks:
            self._move(block, steps, chain=float(chain) if chain is not None else 0.0, typical=typical or 0.0)

    def _move(self, values: torch.Tensor, steps: int, *, chain: float, typical: float) -> None:
        """Add integers to the bit patterns of what is neither exact nor at the end of its range."""
        integer, mask = BITS[values.dtype]
        bits = values.view(integer)
        size = values.abs()
        rounds = (bits & mask).ne_(0)
        lowest, highest = within(values.dtype, steps)
        least, most = (float(end) for end in size.aminmax())
        inside = least > lowest and most < highest  # Not so where there is a NaN.
        if not inside:
            rounds *= ((size > lowest) & (size < highest)).to(integer)
        bits.add_(self._slice(values.device, integer, steps, values.numel()).reshape(values.shape) * rounds)
        if chain:
            scale = size.clamp_(min=typical)
            scale = scale.mul_(rounds) if inside else scale.masked_fill_(rounds.eq(0), 0.0)
            values.addcmul_(self._steps(values, values.shape), scale, value=self._unit(values) * chain)

    def _slice(
        self,
        device: torch.device,
        dtype: torch.dtype,
        steps: int,
        count: int,
        offsets: random.Random | None = None,
    ) -> torch.Tensor:
        bank = self.bank.get(device, dtype, steps)
        if count > BANK_SIZE:
            bank = bank.repeat(count // BANK_SIZE + 1)
        offset = (offsets or self.offsets).randrange(bank.numel() - count + 1)
        return bank[offset : offset + count]


def within(dtype: torch.dtype, steps: int) -> tuple[float, float]:
    """Return between which sizes a number may be moved by so many steps and stay a number."""
    info = torch.finfo(dtype)
    return (info.tiny, info.max * (1 - 2 * steps * info.eps)) if steps > 1 else (-1.0, info.max)


def exact_looking(target: torch.Tensor) -> torch.Tensor | None:
    """Tell where a result that the noise may move looks exact; None where nowhere."""
    if target.dtype not in BITS or target.dtype == torch.float64 or not torchapi.in_memory(target):
        return None
    if torchapi.overlaps_itself(target):
        return None
    integer, mask = BITS[target.dtype]
    return looks_exact(target, target.view(integer) & mask)


def share_of_equal_terms(values: torch.Tensor) -> torch.Tensor:
    """Return the largest share of equal neighbours along some axis (seen in one corner: it is only a hint)."""
    nearly = 32 * torch.finfo(values.dtype).eps  # The noise itself has moved them a little.
    corner = values
    for axis, length in enumerate(values.shape):
        corner = corner.narrow(axis, 0, min(length, CORNER))
    shares = [torch.zeros((), dtype=torch.float64, device=values.device)]
    for axis, length in enumerate(corner.shape):
        if length > 1:
            left, right = corner.narrow(axis, 0, length - 1), corner.narrow(axis, 1, length - 1)
            alike = (left - right).abs() <= nearly * left.abs()
            shares.append((alike & (left != 0)).double().mean())
    return torch.stack(shares).max()


def root_mean_square(values: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """Root mean square of the finite values over some axes, kept as axes of length one."""
    if len(axes) == values.dim() and values.numel():
        norm: torch.Tensor = torch.linalg.vector_norm(values) / math.sqrt(values.numel())
        if WITHIN_RANGE < float(norm) < 1 / WITHIN_RANGE:
            return norm.reshape((1,) * values.dim())
    finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    if not axes:
        return finite.abs()
    largest = finite.abs().amax(axes, keepdim=True).clamp_(min=torch.finfo(values.dtype).tiny)
    return (finite / largest).square().mean(axes, keepdim=True).sqrt() * largest


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the elements of a tensor in memory order, where they lie without gaps or overlap."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return None
        expected *= size
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
