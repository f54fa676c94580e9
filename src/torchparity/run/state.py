"""All state that a run can read or write, saved once and put back before every run.

Tensors are saved storage by storage, so that tied weights and views stay tied. What Python holds besides is the
business of `python_state`.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from torchparity import torchapi
from torchparity.compare.leaves import walk
from torchparity.compare.matrices import same_bytes
from torchparity.run.python_state import PythonState
from torchparity.run.subject import loose_tensors, owned_modules
from torchparity.run.zones import Zones, like, placeable

# Bytes of parameters and buffers that may be copied to lie between red zones.
ZONED_STATE = 2**31


class RandomState:
    """The state of every random generator: Python's, NumPy's, torch's on the CPU and on each device."""

    def __init__(self) -> None:
        self.python = random.getstate()
        self.numpy = np.random.get_state()
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """Put every generator back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)

    def same_python_numbers(self, other: RandomState) -> bool:
        """Tell whether Python's and NumPy's generators stand at the same place."""
        numpy = zip(self.numpy, other.numpy, strict=True)
        return self.python == other.python and all(np.array_equal(left, right) for left, right in numpy)

    def same_torch_numbers(self, other: RandomState) -> bool:
        """Tell whether torch's generators stand at the same place: as many numbers have been drawn from each."""
        pairs = [(self.cpu, other.cpu), *zip(self.cuda, other.cuda, strict=True)]
        return all(torch.equal(left, right) for left, right in pairs)

    def with_torch(self, states: Mapping[str, torch.Tensor]) -> RandomState:
        """Return this state with torch's generators of some devices elsewhere."""
        changed = copy.copy(self)
        changed.cuda = list(self.cuda)
        for name, state in states.items():
            device = torch.device(name)
            if device.type == "cpu":
                changed.cpu = state
            elif device.type == "cuda" and (device.index or 0) < len(changed.cuda):
                changed.cuda[device.index or 0] = state
        return changed

    @classmethod
    def seeded(cls, seed: int) -> RandomState:
        """Return the state right after seeding everything with one number."""
        before = cls()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        after = cls()
        before.restore()
        return after


class Snapshot:
    """The bytes of some storages, by identity."""

    def __init__(self) -> None:
        self.saved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.clones: list[tuple[torch.Tensor, torch.Tensor]] = []

    def save(self, tensor: torch.Tensor) -> None:
        """Save a tensor's storage (once, however many tensors share it); of a sharded one, this rank's shard."""
        tensor = torchapi.local_part(tensor)
        key = torchapi.storage_key(tensor)
        if key is None or not torchapi.in_memory(tensor):
            self.clones.append((tensor, tensor.detach().clone()))
        elif key not in self.saved:
            storage = tensor.untyped_storage()
            self.saved[key] = (storage, storage.clone())

    def restore(self) -> None:
        """Write every saved byte back."""
        for storage, saved in self.saved.values():
            if storage.nbytes() != saved.nbytes():
                storage.resize_(saved.nbytes())
            if not _same_bytes(storage, saved):
                storage.copy_(saved)
        with torch.no_grad():
            for tensor, clone in self.clones:
                if torchapi.can_be_written(tensor):
                    tensor.copy_(clone)

    def original(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return what a tensor held when it was saved, as a view of the saved bytes."""
        tensor = torchapi.local_part(tensor)
        key = torchapi.storage_key(tensor)
        if key is None or key not in self.saved:
            return next((clone for held, clone in self.clones if held is tensor), None)
        return like(tensor, self.saved[key][1])


class ModelState:
    """Parameters, buffers, other tensors, gradients, modes and Python attributes of a model."""

    def __init__(self, model: Any) -> None:
        self.modules = owned_modules(model)
        self.loose = loose_tensors(model)
        self.snapshot = Snapshot()
        self.leaves: set[int] = set()
        self.tensors: list[tuple[torch.Tensor, torch.Tensor, bool]] = []
        self.gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self.training = [(module, module.training) for root in self.modules.values() for module in root.modules()]
        seen: set[int] = set()
        for root in self.modules.values():
            for tensor in [*root.parameters(), *root.buffers()]:
                self._save_tensor(tensor, seen)
        self.python = PythonState(model, self.modules, lambda tensor: self._save_tensor(tensor, seen))
        for tensor in self.loose.values():
            self._save_tensor(tensor, seen)

    def _save_tensor(self, tensor: torch.Tensor, seen: set[int]) -> None:
        if id(tensor) in seen:
            return
        seen.add(id(tensor))
        self.snapshot.save(tensor)
        self.tensors.append((tensor, tensor.detach(), tensor.requires_grad))
        if tensor.is_leaf:
            self.leaves.add(id(tensor))
            self.gradients.append((tensor, tensor.grad))

    def restore(self) -> None:
        """Put everything back, gradients cleared: the ground every run starts from."""
        self.shard_again()
        self.python.restore()
        for tensor, data, requires_grad in self.tensors:
            if not tensor.is_leaf and id(tensor) in self.leaves:
                tensor.detach_()  # The run wrote something with a gradient to it, in place.
            if torchapi.is_plain(tensor) and not _same_place(tensor, data):
                tensor.data = data
            if tensor.is_leaf and tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
        self.snapshot.restore()
        for tensor, _ in self.gradients:
            tensor.grad = None

    def shard_again(self) -> None:
        """Let every module hold its shard again: FSDP2 leaves the outermost one whole after a forward pass."""
        for root in self.modules.values():
            for module in root.modules():
                torchapi.shard_again(module)

    def lie_between(self, zones: Zones) -> None:
        """Let parameters and buffers lie between red zones until everything is put back."""
        moved: dict[int, torch.UntypedStorage] = {}
        left = ZONED_STATE
        for name, role, tensor in self.named():
            key = torchapi.storage_key(tensor) if placeable(tensor) else None
            if key is not None and key not in moved and tensor.untyped_storage().nbytes() <= left:
                left -= tensor.untyped_storage().nbytes()
                moved[key] = zones.copy(f"{role} {name}", tensor.untyped_storage())
            if key in moved:
                tensor.data = like(tensor, moved[key])

    def set_training(self, training: bool) -> None:
        """Switch every module to train or eval mode (some modules keep theirs: that is theirs to say)."""
        for module in self.modules.values():
            with contextlib.suppress(NotImplementedError):  # An exported program has the mode that it was exported in.
                module.train(training)

    def release(self) -> None:
        """Give the model back to its owner as it was found: values, modes and gradients."""
        self.restore()
        for module, training in self.training:
            module.training = training
        for tensor, gradient in self.gradients:
            tensor.grad = gradient

    def named(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield (name, role, tensor) for parameters, buffers and loose tensors, each once."""
        seen: set[int] = set()
        for root, module in self.modules.items():
            prefix = f"{root}." if root else ""
            groups = (("parameter", module.named_parameters()), ("buffer", module.named_buffers()))
            for role, group in groups:
                for name, tensor in group:
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        yield prefix + name, role, tensor
        for name, tensor in self.loose.items():
            if id(tensor) not in seen:
                yield name, "tensor", tensor

    def attributes(self, held: Container[int]) -> Iterator[tuple[str, Any, Any]]:
        """Yield (path, value, saved tensor or None) for tensors in Python's state, and for what else a run has changed.

        Tensors whose identity is `held` have been told already.
        A cache, a counter, a list of results: what a run writes there is part of what it computes.
        """
        for path, value in self.python.changes():
            if not isinstance(value, torch.Tensor):
                yield path, value, None
            elif id(value) not in held:
                yield path, value, self.snapshot.original(value)

    def parameters(self) -> list[torch.Tensor]:
        """Return what an optimizer would be given."""
        return [tensor for _, _, tensor in self.named() if tensor.requires_grad and tensor.is_leaf]


def _same_bytes(storage: torch.UntypedStorage, saved: torch.UntypedStorage) -> bool:
    """Tell whether memory is as it was: what nobody has written to may be read-only, a file that is mapped."""
    if storage.device.type != "cpu":
        return False  # Asking would wait for the device.
    left, right = (torch.empty(0, dtype=torch.uint8, device=entry.device).set_(entry) for entry in (storage, saved))
    return same_bytes(left, right)


def _same_place(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    return (
        torchapi.storage_key(tensor) == torchapi.storage_key(data)
        and tensor.dtype == data.dtype
        and tensor.shape == data.shape
        and tensor.stride() == data.stride()
        and tensor.storage_offset() == data.storage_offset()
    )


class CallInputs:
    """Fresh inputs for every run: cloned storage by storage, so that views and shared arguments stay so."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState) -> None:
        self.args = args
        self.kwargs = dict(kwargs)
        self.state = state
        self.generators = [
            (leaf, leaf.get_state()) for _, leaf in walk((self.args, self.kwargs)) if isinstance(leaf, torch.Generator)
        ]

    def named(self) -> list[tuple[str, torch.Tensor]]:
        """Return (path, tensor) of the user's own tensors."""
        return [
            (path, leaf)
            for path, leaf in walk({"args": self.args, "kwargs": self.kwargs}, "")
            if isinstance(leaf, torch.Tensor)
        ]

    def restore_generators(self) -> None:
        """Put random generators among the inputs back."""
        for generator, state in self.generators:
            generator.set_state(state)

    def fresh(
        self, *, requires_grad: bool = False, zones: Zones | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a copy of the arguments that a run may do anything to, between red zones where there are some.

        Tensors that belong to the model's own state are passed through, not copied. With
        `requires_grad`, every float tensor asks for a gradient, whatever the user said.
        """
        memo: dict[int, Any] = {id(module): module for root in self.state.modules.values() for module in root.modules()}
        memo |= {id(tensor): tensor for tensor, _, _ in self.state.tensors}
        storages: dict[int, torch.UntypedStorage] = {}
        for path, tensor in self.named():
            key = torchapi.storage_key(tensor)
            if key is not None and key in self.state.snapshot.saved:
                memo[id(tensor)] = tensor
                continue
            if id(tensor) in memo:
                continue
            if key is not None and key not in storages and zones is not None and placeable(tensor):
                storages[key] = zones.copy(f"input {path.removeprefix('.')}", tensor.untyped_storage())
            memo[id(tensor)] = _clone(tensor, key, storages, requires_grad=requires_grad)
        self.restore_generators()
        memo.update({id(generator): generator for generator, _ in self.generators})
        args, kwargs = copy.deepcopy((self.args, self.kwargs), memo)
        return args, kwargs


def _clone(
    tensor: torch.Tensor,
    key: int | None,
    storages: dict[int, torch.UntypedStorage],
    *,
    requires_grad: bool,
) -> torch.Tensor:
    wanted = tensor.requires_grad or (requires_grad and (tensor.is_floating_point() or tensor.is_complex()))
    if key is None or not torchapi.in_memory(tensor):
        return differentiable(tensor.detach().clone().requires_grad_(wanted), tensor)
    if key not in storages:
        storages[key] = tensor.untyped_storage().clone()
    return differentiable(like(tensor, storages[key]).requires_grad_(wanted), tensor)


def differentiable(clone: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a copy that is the result of something where the tensor is: then it is no leaf, and keeps its gradient."""
    if not like.requires_grad or like.is_leaf:
        return clone
    with torch.enable_grad():
        result = clone.clone()
    result.retain_grad()
    return result
