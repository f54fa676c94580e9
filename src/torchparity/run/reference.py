"""The float64 reference: the model runs as it is, and every storage has a float64 shadow beside it.

Each operation is done twice: once on the real tensors, so that dtypes, random numbers, branches and
decisions are eager's own, and once on the shadows, in float64, with every cast inside promoted. A
shadow belongs to a storage, not to a tensor: views need no work, and writing in place through one
view is seen through all others. A tensor without a shadow is exact, and is promoted when it is read.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.integers import Origin
from torchparity.run.exactness import Exactness
from torchparity.run.lookalikes import LOSING
from torchparity.run.mode import Watch, fresh_outputs, written_tensors
from torchparity.run.operators import ALLOCATES, CHOOSES, HANDS_ON, Traits, float_tensors, poison
from torchparity.run.shadows import PROMOTED, Shadows

# Operations that fill a tensor with what one other rank sends to this one.
RECEIVES = ("recv_", "recv_any_source_")

# Operations that count from where a storage begins: their shadows must lie where they lie.
SEES_STORAGE = ("as_strided_copy", "as_strided_scatter")

# What makes a Python number of a tensor: the model may decide by it what to run.
READS = "_local_scalar_dense"
# Beside an error that is so many times larger, a number is nothing but its error.
ALL_ERROR = 1e-6


class NeedsPlainKernels(Exception):
    """An operation has no float64 form: the run must be made again with the plain kernels."""


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """Turn off the fused kernels that have no float64 form (oneDNN and cuDNN recurrences, fused attention)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with (
        torchapi.without_onednn(),
        torch.backends.cudnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
    ):
        yield


class Reference(Watch):
    """Keeps a float64 shadow of everything that eager computes, and notes what depends on random numbers.

    Where a rounding decides (a floor, a comparison, an argmax), the shadow stands on eager's side of the step, so that
    the two can be compared; a `free` one decides by itself. Shadows of other `formats` are what code computes that
    keeps these in between; where `keeps` says no to one, it is rounded as eager rounds it.
    """

    def __init__(
        self,
        *,
        plain: bool = False,
        free: bool = False,
        exact: bool = False,
        formats: Mapping[torch.dtype, torch.dtype] = PROMOTED,
        keeps: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__()
        self.formats, self.keeps = formats, keeps
        self.exactness = Exactness() if exact else None
        self.free = free
        self.decisions = 0
        # Whether something was rounded to half precision.
        self.halves = False
        self.shadows = Shadows(formats)
        self.plain = plain
        self.unpromoted: Counter[str] = Counter()
        self.draws: list[torch.Tensor] = []
        self.random_operations: Counter[str] = Counter()
        # Whether the model looks at a random number, and may decide by it what to run.
        self.random_read = False
        # How many numbers of its tensors the model looks at.
        self.reads = 0
        self.poisoned = 0
        self._lending: list[contextlib.AbstractContextManager[None]] = []
        self._random: dict[int, Any] = {}
        self._indices: dict[int, tuple[Any, tuple[int, ...], Origin]] = {}
        self._collected: dict[int, Any] = {}

    def __enter__(self) -> Reference:
        """Watch, and hear of memory that is handed out: nobody sees what is written to it."""
        heard = contextlib.nullcontext() if self._lending else torchapi.memory_handed_out(self.shadows.lend)
        heard.__enter__()
        self._lending.append(heard)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._lending.pop().__exit__(*error)

    def operate(self, func: Callable[..., Any], traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation on the real tensors, then on their shadows."""
        if traits.name in ALLOCATES:
            outputs = func(*args, **kwargs)
            self.poisoned += poison(outputs)
            return outputs
        if traits.view or (traits.name == "copy_" and self._repeats_collective(*args[:2])):
            return func(*args, **kwargs)
        if traits.opaque and not self.plain:
            raise NeedsPlainKernels(traits.name)
        written = written_tensors(traits, args, kwargs)
        written_floats = [tensor for tensor in written if tensor.dtype in self.formats]
        for tensor in written:
            if tensor.dtype not in self.formats:
                self.shadows.forget(tensor)  # Bits of floats, seen as integers: they are what they are made.
        if traits.name in SEES_STORAGE and args[0].dtype in self.formats:
            self.shadows.materialise(args[0])
        early: tuple[Any, Any] | None = None
        if written_floats:
            for tensor in written_floats:
                self.shadows.materialise(tensor)
            early = self._promote(traits, args, kwargs)
        outputs = func(*args, **kwargs)
        if traits.name in RECEIVES:
            for tensor in float_tensors((args, kwargs)):
                self.shadows.forget(tensor)  # What the other rank sends is taken for exact.
        fresh = fresh_outputs(outputs, args, kwargs)
        self._follow_random(traits, args, kwargs, [*written, *fresh])
        self._follow_indices(func, traits, args, kwargs, [*written, *fresh])
        if traits.replayed:
            self.draws += [leaf.clone() for leaf in torchapi.tree_leaves(outputs)]
        fresh_floats = [tensor for tensor in fresh if tensor.dtype in self.formats]
        self.halves |= any(tensor.dtype in LOSING for tensor in fresh_floats)
        discrete = len(fresh_floats) < len(fresh) and not traits.random and bool(float_tensors((args, kwargs)))
        self.decisions += traits.decides or discrete
        if self.free and discrete and not written_floats:
            self._decide(func, traits, args, kwargs, outputs)
        if traits.name == READS:
            self.reads += 1
            return self._read(args[0], outputs) if self.free else outputs
        if not fresh_floats and not written_floats:
            self._follow_exact(func, traits, args, kwargs, early, [*written, *fresh])
            return outputs
        decides = traits.decides and not self.free
        if (traits.random or decides) and traits.name != "native_dropout":
            for tensor in written_floats:
                self.shadows.materialise(tensor).copy_(tensor)
            self._follow_exact(func, traits, args, kwargs, early, [*written, *fresh])
            return outputs
        doubled = early or self._promote(traits, args, kwargs)
        self._shadow(func, traits, doubled, outputs, args, kwargs)
        self._follow_exact(func, traits, args, kwargs, doubled, [*written, *fresh])
        return outputs

    def collect_from_ranks(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a collective, then again on the shadows: every rank's float64 takes part.

        What it writes to is not in its schema, so that every tensor it is given gets a shadow.
        """
        floats = [tensor for tensor in float_tensors((args, kwargs)) if tensor.dtype in self.formats]
        for tensor in floats:
            self.shadows.materialise(tensor)
        outputs = super().collect_from_ranks(func, args, kwargs)
        if not floats:
            return outputs
        promoted = torchapi.tree_map(
            lambda leaf: self.shadows.read(leaf) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
        )
        twins = super().collect_from_ranks(func, *promoted)
        for tensor in floats:
            key = torchapi.storage_key(tensor)
            if key is not None:
                self._collected[key] = torchapi.StorageWeakRef(tensor.untyped_storage())
        fresh = {id(tensor) for tensor in fresh_outputs(outputs, args, kwargs)}
        for tensor, twin in zip(torchapi.tree_leaves(outputs), torchapi.tree_leaves(twins), strict=True):
            if id(tensor) in fresh and tensor.dtype in self.formats:
                self.shadows.write(tensor, twin)
        return outputs

    def _repeats_collective(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Tell whether a copy is a collective's own: gloo copies its results again whenever somebody waits for them."""
        key = torchapi.storage_key(target)
        entry = self._collected.get(key) if key is not None else None
        if entry is None or entry.expired() or self.shadows.has(source):
            return False
        return target.shape == source.shape and torch.equal(target, source)

    def _promote(self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the arguments with shadows for tensors and float64 for every float dtype."""
        whole = not float_tensors((args, kwargs))

        def promote(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                if leaf.dtype in self.formats:
                    return self.shadows.read(leaf)
                # An operation on integers alone that gives floats (a true division) is done on doubles.
                integral = not leaf.is_floating_point() and leaf.dtype != torch.bool
                return leaf.to(self.formats[torch.float32]) if whole and integral and not leaf.is_complex() else leaf
            return self.formats.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

        promoted = torchapi.tree_map(promote, (args, kwargs))
        if traits.kinked:
            decisive = args[1]
            promoted = ((promoted[0][0], decisive.to(self.formats[torch.float32]), *promoted[0][2:]), promoted[1])
        return promoted[0], promoted[1]

    def _follow_exact(
        self,
        func: Callable[..., Any],
        traits: Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        doubled: tuple[Any, Any] | None,
        results: list[torch.Tensor],
    ) -> None:
        """Tell whether results are exact in any order; what float64 made of them is their shadow by now."""
        if self.exactness is None:
            return
        arguments = doubled or self._promote(traits, args, kwargs)
        twins = [(tensor, self.shadows.read(tensor)) for tensor in results]
        self.exactness.follow(func, traits, args, kwargs, arguments, twins)

    def _decide(
        self, func: Callable[..., Any], traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any
    ) -> None:
        """Let float64 decide: its integers and bools take the place of eager's."""
        doubled = self._promote(traits, args, kwargs)
        try:
            twins = torchapi.tree_leaves(func(*doubled[0], **doubled[1]))
        except Exception:  # noqa: BLE001 - without a float64 kernel eager's decision stands
            return
        for tensor, twin in zip(torchapi.tree_leaves(outputs), twins, strict=False):
            if not isinstance(tensor, torch.Tensor) or tensor.dtype in self.formats:
                continue
            if twin.dtype == tensor.dtype and twin.shape == tensor.shape and torchapi.in_memory(tensor):
                tensor.copy_(twin)

    def _read(self, tensor: torch.Tensor, value: Any) -> Any:
        """Let float64 decide what a number is: zero, where all that eager has is an error."""
        if tensor.dtype not in self.formats or tensor.is_complex():
            return value
        truth = float(self.shadows.read(tensor))
        return 0.0 if abs(truth) <= ALL_ERROR * abs(truth - value) else truth

    def _shadow(
        self,
        func: Callable[..., Any],
        traits: Traits,
        promoted: tuple[Any, Any],
        outputs: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Do the operation in float64 and keep the results; where that fails, eager's value stands in."""
        fresh = {id(tensor) for tensor in fresh_outputs(outputs, args, kwargs)}
        real = torchapi.tree_leaves(outputs)
        try:
            if traits.name == "native_dropout":
                twins = [_dropout(promoted[0], outputs), outputs[1]]
            else:
                twins = torchapi.tree_leaves(func(*promoted[0], **promoted[1]))
            for tensor, twin in zip(real, twins, strict=True):
                if id(tensor) in fresh and tensor.dtype in self.formats:
                    if twin.shape != tensor.shape:
                        raise RuntimeError("the float64 result has another shape")
                    stored = self.keeps is not None and not self.keeps()
                    self.shadows.write(tensor, twin.to(tensor.dtype) if stored else twin)
        except Exception as error:  # A user's operator may refuse float64 in any way it likes: it is named.
            if torchapi.is_out_of_memory(error):
                raise
            self.unpromoted[traits.name] += 1
            for tensor in written_tensors(traits, args, kwargs):
                if tensor.dtype in self.formats:
                    self.shadows.materialise(tensor).copy_(tensor)

    def _follow_random(
        self,
        traits: Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: list[torch.Tensor],
    ) -> None:
        """Mark results that come from a random number, directly or not."""
        self.random_read |= traits.name == READS and self.is_random(args[0])
        if traits.random:
            self.random_operations[traits.name] += 1
        elif not self._random or not any(
            isinstance(leaf, torch.Tensor) and self.is_random(leaf) for leaf in torchapi.tree_leaves((args, kwargs))
        ):
            return
        for tensor in results:
            key = torchapi.storage_key(tensor)
            if key is not None:
                self._random[key] = torchapi.StorageWeakRef(tensor.untyped_storage())

    def _follow_indices(
        self,
        func: Any,
        traits: Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: list[torch.Tensor],
    ) -> None:
        """Mark integers that are indices, and note what they choose among."""
        integers = [tensor for tensor in results if tensor.dtype in (torch.int64, torch.int32)]
        if not integers:
            return
        name = traits.name.removesuffix("_")
        if name in CHOOSES and args and isinstance(args[0], torch.Tensor):
            found: Origin | None = self._choice(func, name, args, kwargs)
        else:
            known = [self.origin(leaf) for leaf in torchapi.tree_leaves((args, kwargs)) if is_integer(leaf)]
            found = next((origin for origin in known if origin is not None), None)
            found = found if found is None or name in HANDS_ON else Origin()
        if found is None:
            return
        for tensor in integers:
            key = torchapi.storage_key(tensor)
            if key is not None:
                entry = (torchapi.StorageWeakRef(tensor.untyped_storage()), tuple(tensor.shape), found)
                self._indices[key] = entry

    def _choice(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Origin:
        values = args[0]
        if not values.is_floating_point() or not torchapi.in_memory(values) or name in ("nonzero", "multinomial"):
            return Origin()
        axis = torchapi.given_argument(func, "dim", args, kwargs)
        if axis is None and values.dim() > 1:
            values, axis = values.flatten(), 0
        error = 0.0
        if self.shadows.has(args[0]):
            apart = (self.shadows.read(args[0]) - args[0]).abs()
            error = float(torch.nan_to_num(apart, nan=0.0, posinf=0.0).max()) if apart.numel() else 0.0
        axis = int(axis or 0) % max(1, values.dim())
        return Origin(values=values.detach(), axis=axis, error=error, first=CHOOSES[name])

    def origin(self, tensor: torch.Tensor) -> Origin | None:
        """Return where integers come from, if they are indices."""
        key = torchapi.storage_key(tensor)
        entry = self._indices.get(key) if key is not None else None
        if entry is None or entry[0].expired():
            return None
        return entry[2] if entry[1] == tuple(tensor.shape) else Origin()

    def is_random(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor's value depends on a random number."""
        key = torchapi.storage_key(tensor)
        entry = self._random.get(key) if key is not None else None
        return entry is not None and not entry.expired()

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the float64 value of a result, or None where it has none (integers, float64 itself)."""
        return self.shadows.read(tensor) if tensor.dtype in self.formats else None


def is_integer(leaf: Any) -> bool:
    """Tell whether a leaf is a tensor of integers."""
    return isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.int64, torch.int32)


def _dropout(promoted: tuple[Any, ...], outputs: Any) -> torch.Tensor:
    """Apply eager's own mask: float64 would draw another one."""
    values, probability = promoted[0], promoted[1]
    if len(promoted) > 2 and promoted[2] is False:
        kept: torch.Tensor = values.clone()
        return kept
    mask: torch.Tensor = outputs[1]
    scale = 0.0 if probability == 1 else 1.0 / (1.0 - probability)
    result: torch.Tensor = values * mask * scale
    return result
