"""One run of a model: calls, backward passes and optimizer steps, every leaf handed on as soon as it exists."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.leaves import Leaf, walk
from torchparity.compare.statistics import identical
from torchparity.errors import ParityError
from torchparity.records import Failure
from torchparity.run.loss import PROJECTION, Loss, scalar_loss, tangents_of
from torchparity.run.reference import NeedsPlainKernels, is_out_of_memory
from torchparity.run.state import CallInputs, ModelState, RandomState
from torchparity.run.subject import Subject

OptimizerFactory = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
Consume = Callable[[Leaf], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run does with the model."""

    training: bool = False
    backward: bool = False
    steps: int = 1
    optimizer: OptimizerFactory | None = None
    autocast: torch.dtype | None = None
    loss: Loss = PROJECTION
    seed: int = 0
    input_gradients: bool = False


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended."""

    seconds: float
    failure: Failure | None = None
    out_of_memory: bool = False
    random: RandomState | None = None


class Runner:
    """Runs one subject again and again from exactly the same state."""

    def __init__(self, subject: Subject, plan: Plan) -> None:
        self.subject = subject
        self.plan = plan
        self.callers_random = RandomState()
        self.state = ModelState(subject.model)
        self.random = RandomState.seeded(plan.seed)
        self.calls = [CallInputs(args, kwargs, self.state) for args, kwargs in subject.calls()]
        self.device = self._device()

    def _device(self) -> torch.device:
        tensors = [tensor for _, _, tensor in self.state.named()]
        tensors += [tensor for call in self.calls for _, tensor in call.named()]
        devices = [tensor.device for tensor in tensors if tensor.device.type != "cpu"]
        return devices[0] if devices else torch.device("cpu")

    def release(self) -> None:
        """Leave the model and every random generator as they were found."""
        self.state.release()
        for call in self.calls:
            call.restore_generators()
        self.callers_random.restore()

    def run(
        self,
        function: Callable[..., Any],
        consume: Consume,
        *,
        mode: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> Ending:
        """Run every call from the saved state; an exception is an ending, not the caller's problem."""
        started = time.perf_counter()
        self.state.restore()
        self.state.set_training(self.plan.training)
        self.random.restore()
        phase = ["forward"]
        try:
            self._run(function, consume, mode, phase)
            self._synchronise()
        except (ParityError, NeedsPlainKernels):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a model raises is an ending of the run
            failure = describe_failure(error, phase[0])
            memory = is_out_of_memory(error)
            traceback.clear_frames(error.__traceback__)
            return Ending(seconds=time.perf_counter() - started, failure=failure, out_of_memory=memory)
        return Ending(seconds=time.perf_counter() - started, random=RandomState())

    def _synchronise(self) -> None:
        """Wait for the device, so that a bad memory access shows in the run that made it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _run(
        self,
        function: Callable[..., Any],
        consume: Consume,
        mode: Callable[[], contextlib.AbstractContextManager[Any]],
        phase: list[str],
    ) -> None:
        plan = self.plan
        optimizer = plan.optimizer(self.state.parameters()) if plan.optimizer else None
        calls = [call for _ in range(plan.steps) for call in self.calls]
        for index, call in enumerate(calls):
            args, kwargs = call.fresh(requires_grad=plan.input_gradients)
            prefix = f"call[{index}]." if len(calls) > 1 else ""
            inputs = [
                (path.removeprefix("."), leaf)
                for path, leaf in walk({"args": args, "kwargs": kwargs})
                if isinstance(leaf, torch.Tensor)
            ]
            phase[0] = "forward"
            with mode(), torch.set_grad_enabled(plan.backward), self._autocast():
                outputs = function(*args, **kwargs)
            state = list(self.state.named())
            for path, value in walk(outputs, "output"):
                consume(self._output(prefix + path, value, self._places(inputs, state)))
            loss = None
            if plan.backward:
                phase[0] = "backward"
                loss = self._backward(outputs, mode, plan.seed + index)
            if optimizer is not None:
                phase[0] = "optimizer"
                with mode():
                    optimizer.step()
            phase[0] = "collect"
            del outputs
            for leaf in self._leaves(prefix, call, inputs, loss, optimizer):
                consume(leaf)

    def _backward(
        self, outputs: Any, mode: Callable[[], contextlib.AbstractContextManager[Any]], seed: int
    ) -> torch.Tensor | None:
        """Run the backward pass; return the loss where there is one number.

        Tangents are the tool's, not the model's: they are drawn outside the mode that watches the model.
        """
        if self.plan.loss != PROJECTION:
            with mode(), self._autocast():
                return scalar_loss(outputs, self.plan.loss)
        tensors, tangents = tangents_of(outputs, seed=seed)
        if tensors:
            with mode():
                torch.autograd.backward(tensors, tangents)
        return None

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.plan.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.plan.autocast)

    def _leaves(
        self,
        prefix: str,
        call: CallInputs,
        inputs: list[tuple[str, torch.Tensor]],
        loss: torch.Tensor | None,
        optimizer: torch.optim.Optimizer | None,
    ) -> Iterator[Leaf]:
        """Yield gradients, parameters, buffers, inputs and optimizer state after one call."""
        state = list(self.state.named())
        if loss is not None:
            yield Leaf(path=f"{prefix}loss", role="loss", value=loss)
        if self.plan.backward:
            for name, _, tensor in state:
                if tensor.requires_grad and tensor.is_leaf:
                    yield Leaf(path=f"{prefix}grad.{name}", role="gradient", value=taken(tensor))
            for path, tensor in inputs:
                if tensor.requires_grad and tensor.is_leaf:
                    yield Leaf(path=f"{prefix}grad.{path}", role="gradient", value=taken(tensor))
        for name, role, tensor in state:
            original = self.state.snapshot.original(tensor)
            yield self._state_leaf(f"{prefix}{role}.{name}", role, tensor, original)
        originals = dict(call.named())
        for path, tensor in inputs:
            original = originals.get(f".{path}")
            if not any(tensor is held for held in originals.values()):
                yield self._state_leaf(f"{prefix}input.{path}", "input", tensor, original)
        if optimizer is not None:
            yield from self._optimizer_leaves(prefix, optimizer, state)

    @staticmethod
    def _places(inputs: list[tuple[str, torch.Tensor]], state: list[tuple[str, str, torch.Tensor]]) -> dict[int, str]:
        places: dict[int, str] = {}
        named = [*inputs, *((f"{role}.{name}", tensor) for name, role, tensor in state)]
        for path, tensor in named:
            key = torchapi.storage_key(tensor)
            if key is not None:
                places.setdefault(key, path)
        return places

    @staticmethod
    def _output(path: str, value: Any, places: dict[int, str]) -> Leaf:
        if not isinstance(value, torch.Tensor):
            return Leaf(path=path, role="output", value=value)
        key = torchapi.storage_key(value) if torchapi.is_plain(value) else None
        place = places.get(key) if key is not None else None
        held = value.detach()
        return Leaf(
            path=path,
            role="output",
            value=held.clone() if place is not None else held,
            strides=value.stride() if value.layout == torch.strided and not value.is_nested else None,
            aliases=(place,) if place is not None else (),
            requires_grad=value.requires_grad,
        )

    @staticmethod
    def _state_leaf(path: str, role: str, tensor: torch.Tensor, original: torch.Tensor | None) -> Leaf:
        if original is not None and unchanged(tensor, original):
            return Leaf(path=path, role=role, value=original, changed=False)
        return Leaf(path=path, role=role, value=tensor.detach())

    @staticmethod
    def _optimizer_leaves(
        prefix: str, optimizer: torch.optim.Optimizer, state: list[tuple[str, str, torch.Tensor]]
    ) -> Iterator[Leaf]:
        for name, _, tensor in state:
            for path, value in walk(optimizer.state.get(tensor, {}), f"optimizer.{name}"):
                held = value.detach() if isinstance(value, torch.Tensor) else value
                yield Leaf(path=prefix + path, role="optimizer", value=held)


def taken(tensor: torch.Tensor) -> torch.Tensor | None:
    """Take a tensor's gradient away from it, so that it lives no longer than the leaf."""
    gradient, tensor.grad = tensor.grad, None
    return gradient


def unchanged(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    """Tell whether a tensor is bit for bit what it was (a NaN counts as a change, and is then compared)."""
    if tensor.shape != original.shape or tensor.dtype != original.dtype:
        return False
    if tensor.layout != torch.strided:
        return identical(tensor.detach().to_dense(), original.to_dense())
    return identical(tensor, original)


def describe_failure(error: BaseException, phase: str) -> Failure:
    """Turn an exception into facts: what, where, and whether it came from compiling or from running."""
    inner = torchapi.inner_failure(error)
    frames = traceback.extract_tb(inner.__traceback__)
    frame = f"{frames[-1].filename}:{frames[-1].lineno} {frames[-1].name}" if frames else ""
    stage = "compile" if torchapi.is_compile_failure(error) else "run"
    message = str(inner).strip() or str(error).strip()
    return Failure(
        type=type(inner).__name__,
        message=message.splitlines()[0][:500] if message else "",
        stage=stage,
        phase=phase,
        frame=frame,
        traceback="".join(traceback.format_exception(error))[-8000:],
    )
