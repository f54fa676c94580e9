"""One run of a model: calls, backward passes and optimizer steps, every leaf handed on as soon as it exists."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.leaves import Leaf
from torchparity.errors import ParityError
from torchparity.records import Failure, Kind
from torchparity.request import PROJECTION
from torchparity.run.collect import (
    Named,
    argument_leaves,
    differentiated,
    gradient_leaves,
    input_tensors,
    optimizer_leaves,
    output_leaves,
    state_leaves,
)
from torchparity.run.loss import drawn_tangents, scalar_loss, tangents_of
from torchparity.run.plan import Plan
from torchparity.run.reference import NeedsPlainKernels
from torchparity.run.state import CallInputs, ModelState, RandomState
from torchparity.run.subject import Subject
from torchparity.run.zones import Zones

Consume = Callable[[Leaf], None]
# Devices whose memory is too dear to hold every gradient of a run, and its float64 twin, until the run is over.
HANDED_ON_EARLY = ("cuda",)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended."""

    seconds: float
    failure: Failure | None = None
    out_of_memory: bool = False
    random: RandomState | None = None
    # Nothing can be asked of the device any more, in this process.
    lost: bool = False


class Runner:
    """Runs one subject again and again from exactly the same state."""

    def __init__(self, subject: Subject, plan: Plan) -> None:
        self.subject = subject
        self.plan = plan
        self.callers_random = RandomState()
        self.state = ModelState(subject.model)
        self.random = RandomState.seeded(plan.seed).with_torch(plan.random)
        self.calls = [CallInputs(args, kwargs, self.state) for args, kwargs in subject.calls()]
        self.device = self._device()
        self.lost = False
        self.zones: Zones | None = None
        # Whether the inputs of a call are held until the next has its own, so that they cannot lie at the same place.
        self.hold_inputs = False
        self.held_inputs: Any = None
        # How often each gradient was added to in the first run: what is whole at once can be handed on at once.
        self.additions: dict[str, int] | None = None

    def _device(self) -> torch.device:
        tensors = [tensor for _, _, tensor in self.state.named()]
        tensors += [tensor for call in self.calls for _, tensor in call.named()]
        devices = [tensor.device for tensor in tensors if tensor.device.type != "cpu"]
        return devices[0] if devices else torch.device("cpu")

    def release(self) -> None:
        """Leave the model and every random generator as they were found, unless they lie on a device that is lost."""
        drawn_tangents.cache_clear()
        self.held_inputs = None
        if self.lost:
            return
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
        patience: float | None = None,
        early: bool = False,
        zones: Zones | None = None,
        state: bool = True,
    ) -> Ending:
        """Run every call from the saved state; an exception is an ending, not the caller's problem.

        A device that is still busy when `patience` is over, after all was asked of it, is taken to hang. Gradients that
        are known to be whole at once are handed on `early`, while the backward pass goes on. With `zones`, inputs and
        state lie between them. Without `state` nobody asks what became of the model's.
        """
        started = time.perf_counter()
        self._begin()
        self.zones = zones
        phase = ["forward"]
        try:
            if zones is not None:
                self.state.lie_between(zones)
            self._run(function, consume, mode, phase, patience, early=early, state=state)
            torchapi.settle(self.device)  # What goes wrong on a device is to show in the run that made it.
        except (ParityError, NeedsPlainKernels):
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a model raises, SystemExit too, is an ending of the run
            failure = describe_failure(error, phase[0])
            memory = torchapi.is_out_of_memory(error)
            hangs = isinstance(error, torchapi.KernelHangs)  # Whoever asks such a device anything waits for ever.
            self.lost = hangs or torchapi.device_lost(self.device)
            if self.lost:
                failure = replace(failure, type=torchapi.device_fault(error), stage=Kind.CRASHES.value, frame="")
            traceback.clear_frames(error.__traceback__)
            seconds = time.perf_counter() - started
            return Ending(seconds=seconds, failure=failure, out_of_memory=memory, lost=self.lost)
        return Ending(seconds=time.perf_counter() - started, random=RandomState())

    def forward(self, function: Callable[..., Any]) -> tuple[Any, Named]:
        """Run the first call from the saved state, with gradients; return its outputs and its input tensors."""
        self._begin()
        args, kwargs = self.calls[0].fresh(requires_grad=self.plan.input_gradients)
        inputs = input_tensors(args, kwargs)
        with self._autocast():
            return function(*args, **kwargs), inputs

    def _begin(self) -> None:
        self.state.restore()
        self.state.set_training(self.plan.training)
        self.random.restore()

    def _run(
        self,
        function: Callable[..., Any],
        consume: Consume,
        mode: Callable[[], contextlib.AbstractContextManager[Any]],
        phase: list[str],
        patience: float | None,
        *,
        early: bool,
        state: bool,
    ) -> None:
        plan = self.plan
        optimizer = plan.optimizer(self.state.parameters()) if plan.optimizer else None
        calls = [call for _ in range(plan.steps) for call in self.calls]
        for index, call in enumerate(calls):
            args, kwargs = call.fresh(requires_grad=plan.input_gradients, zones=self.zones)
            self.held_inputs = (args, kwargs) if self.hold_inputs else None
            prefix = f"call[{index}]." if len(calls) > 1 else ""
            inputs = input_tensors(args, kwargs)
            phase[0] = "forward"
            with mode(), self._gradient_mode(), self._autocast():
                outputs = function(*args, **kwargs)
            torchapi.settle(self.device, patience)
            for leaf in output_leaves(prefix, outputs, inputs, self.state):
                consume(leaf)
            loss = None
            handed: set[str] = set()
            if plan.backward:
                phase[0] = "backward"
                early = early and len(calls) == 1 and optimizer is None and self.device.type in HANDED_ON_EARLY
                with self._handing_on(consume, handed) if early else contextlib.nullcontext():
                    loss = self._backward(outputs, mode, plan.seed + index)
                torchapi.settle(self.device, patience)
            if optimizer is not None:
                phase[0] = "optimizer"
                with mode():
                    optimizer.step()
            phase[0] = "collect"
            del outputs
            self.state.shard_again()
            if loss is not None:
                consume(Leaf(path=f"{prefix}loss", role="loss", value=loss))
            groups = [gradient_leaves(prefix, inputs, self.state, handed)] if plan.backward else []
            groups += [state_leaves(prefix, self.state)] if state else []
            groups += [argument_leaves(prefix, call, inputs, args, kwargs)]
            groups += [optimizer_leaves(prefix, optimizer, self.state)] if optimizer is not None else []
            for leaf in itertools.chain.from_iterable(groups):
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

    @contextlib.contextmanager
    def _handing_on(self, consume: Consume, handed: set[str]) -> Iterator[None]:
        """Hand gradients of parameters on as soon as they are whole; the first time, see which are whole at once."""
        known = self.additions
        if torchapi.is_distributed():  # Other ranks add to them later.
            yield
            return
        counts: dict[str, int] = {}
        failures: list[BaseException] = []

        def hear(path: str, tensor: torch.Tensor) -> None:
            counts[path] = counts.get(path, 0) + 1
            if known is None or known.get(path) != 1 or tensor.grad is None:
                return
            gradient, tensor.grad = tensor.grad, None
            handed.add(path)
            try:
                with torchapi.no_dispatch_modes(), torch.no_grad():
                    consume(Leaf(path=path, role="gradient", value=torchapi.local_part(gradient)))
            except BaseException as error:  # noqa: BLE001 - the engine of autograd would make another one of it
                failures.append(error)

        hooks = [
            tensor.register_post_accumulate_grad_hook(functools.partial(hear, path))
            for path, tensor in differentiated([], self.state).items()
            if tensor.is_leaf
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if failures:
            raise failures[0]
        if known is None:
            self.additions = counts

    def _gradient_mode(self) -> contextlib.AbstractContextManager[Any]:
        if self.plan.inference:
            return torch.inference_mode()
        return torch.set_grad_enabled(self.plan.differentiates)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.plan.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.plan.autocast)


def describe_failure(error: BaseException, phase: str) -> Failure:
    """Turn an exception into facts: what, where, and whether it came from compiling or from running."""
    inner = torchapi.inner_failure(error)
    frames = traceback.extract_tb(inner.__traceback__)
    frame = f"{frames[-1].filename}:{frames[-1].lineno} {frames[-1].name}" if frames else ""
    stage = "compile" if torchapi.is_compile_failure(error) else "run"
    message = (str(inner).strip() if not isinstance(error, torchapi.NotDeployed) else "") or str(error).strip()
    return Failure(
        type=type(inner).__name__,
        message=message.splitlines()[0][:500] if message else "",
        stage=stage,
        phase=phase,
        frame=frame,
        traceback="".join(traceback.format_exception(error))[-8000:],
        lacking=torchapi.lacking(error) if stage == "compile" else "",
    )
