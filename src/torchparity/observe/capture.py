"""Capture: one run of a model, every graph of it written down with the inputs it was called with.

The recorder is a backend. It keeps the graph as Dynamo hands it over, lets AOTAutograd (inductor's own, with its
decompositions, where the backend is inductor) make the forward and backward graphs of it, keeps those too, and runs
them eagerly: what is captured is what eager computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from torchparity import torchapi
from torchparity.compilers.recipe import recipe_plain
from torchparity.errors import BundleError, CaseError
from torchparity.judge.script import write_bundle
from torchparity.repro.case import Case, WrittenGraph, make_case, write_graph
from torchparity.request import Request
from torchparity.run.environment import environment

DYNAMO, AOT = "dynamo", "aot"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A graph that could not be written down, or whose bundle could not, and why."""

    name: str
    reason: str
    hint: str


@dataclass
class Recorder:
    """A torch.compile backend that turns every graph it sees into a case."""

    request: Request
    out: Path | None = None
    calls: int = 1
    cases: list[Case] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    _graphs: int = 0
    _seen: int = 0
    _break: Mapping[str, Any] | None = None

    @property
    def __name__(self) -> str:
        return f"capture of {recipe_plain(self.request).backend_name()}"

    def __call__(self, graph_module: GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        """Compile as torch.compile asks a backend to."""
        self._graphs += 1
        origin: dict[str, Any] = {
            "graph": self._graphs,
            "after": self._break,
            "ends": torchapi.end_of_graph(graph_module),
        }
        self._break = origin["ends"]
        record = self._recording(graph_module, inputs, level=DYNAMO, direction="both", origin=origin)
        try:
            compiled = self._below(graph_module, inputs, origin)
        except Exception as error:  # noqa: BLE001 - a compile error may be the very thing that is looked for
            # The graph as Dynamo made it runs by itself.
            reason = f"AOTAutograd made no graphs of it: {torchapi.inner_failure(error)}"
            self.refusals.append(Refusal(name=f"graph {self._graphs}", reason=reason, hint="the graph before is kept"))
            compiled = graph_module

        def run(*args: Any) -> Any:
            record(list(args))
            return compiled(*args)

        return run

    def _below(self, graph_module: GraphModule, inputs: list[Any], origin: Mapping[str, Any]) -> Callable[..., Any]:
        """Let AOTAutograd make its graphs, as the backend that is being watched would have it."""
        if self.request.backend == "inductor":

            def inner(graph: GraphModule, example: list[Any], **options: Any) -> Any:
                direction = "backward" if options.get("is_backward") else "forward"
                return self._compile(graph, example, direction, origin)

            compiled: Callable[..., Any] = torchapi.compile_with_inductor(graph_module, inputs, inner, self._settings())
            return compiled
        backend = torchapi.aot_backend(
            forward=lambda graph, example: self._compile(graph, example, "forward", origin),
            backward=lambda graph, example: self._compile(graph, example, "backward", origin),
        )
        made: Callable[..., Any] = backend(graph_module, inputs)
        return made

    def _settings(self) -> dict[str, Any]:
        """Return what torch.compile would tell inductor of the user's mode and options."""
        return torchapi.inductor_settings(self.request.mode, self.request.options)

    def _compile(
        self, graph: GraphModule, example: list[Any], direction: str, origin: Mapping[str, Any]
    ) -> Callable[[list[Any]], Any]:
        record = self._recording(graph, example, level=AOT, direction=direction, origin=origin)

        def run(*args: Any) -> Any:
            record(list(args))
            return graph(*args)

        return torchapi.boxed(run)

    def _recording(
        self, graph: GraphModule, example: list[Any], *, level: str, direction: str, origin: Mapping[str, Any]
    ) -> Callable[[list[Any]], None]:
        """Write a graph down now; return the function that makes a case of it and the inputs of a call."""
        written: WrittenGraph | CaseError
        try:
            written = write_graph(graph, example)
        except CaseError as error:
            written = error
        counter = [0]

        def record(inputs: list[Any]) -> None:
            if counter[0] == self.calls:
                return
            counter[0] += 1
            self._seen += 1
            name = f"{self._seen:03d}_{level}" if level == DYNAMO else f"{self._seen:03d}_{direction}_{level}"
            facts = {**origin, "call": counter[0]}
            try:
                if isinstance(written, CaseError):
                    raise written
                request = self.request if level == DYNAMO else alone(self.request, direction)
                case = observed_case(
                    written, inputs, name=name, level=level, direction=direction, request=request, origin=facts
                )
            except CaseError as error:
                self.refusals.append(Refusal(name=name, reason=error.message, hint=error.hint))
                return
            self.cases.append(case)
            if self.out is not None:
                self._write(case, self.out / name)

        return record

    def _write(self, case: Case, folder: Path) -> None:
        """Write a bundle; a disk that does not take it does not stop the program that is being watched."""
        try:
            write_bundle(case, folder)
        except (OSError, BundleError) as error:
            hint = error.hint if isinstance(error, BundleError) else "make room, or choose another folder"
            self.refusals.append(Refusal(name=case.name, reason=f"the bundle was not written: {error}", hint=hint))


def alone(request: Request, direction: str) -> Request:
    """Return the request for a graph of one direction that is compiled by itself.

    A backend that treats the two directions differently says so with a method of this name.
    """
    backend = getattr(request.backend, "alone", None)
    return request if backend is None else replace(request, backend=backend(direction))


@dataclass(frozen=True, kw_only=True)
class Ambient:
    """The state that a graph is about to run in: device, gradient mode, autocast, random generators."""

    device: torch.device
    gradients: bool
    inference: bool
    autocast: str | None
    random: Mapping[str, torch.Tensor]

    @classmethod
    def around(cls, inputs: list[Any]) -> Ambient:
        """Return the state of now."""
        device = device_of(inputs)
        enabled = torch.is_autocast_enabled(device.type)
        return cls(
            device=device,
            gradients=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            autocast=str(torch.get_autocast_dtype(device.type)).removeprefix("torch.") if enabled else None,
            random=random_states(device),
        )


def observed_case(
    graph: WrittenGraph,
    inputs: list[Any],
    *,
    name: str,
    level: str,
    direction: str,
    request: Request,
    origin: Mapping[str, Any],
    ambient: Ambient | None = None,
) -> Case:
    """Return the case of a graph that is about to run, under the state that it is about to run in."""
    ambient = ambient or Ambient.around(inputs)
    with torchapi.no_dispatch_modes():
        return make_case(
            graph,
            inputs,
            name=name,
            level=level,
            direction=direction,
            # A graph may rely on the gradient mode where no input wants a gradient: `torch.func.grad` is in it. After
            # AOTAutograd both are in the graph. Whether a backward pass follows is the caller's to say, who may not.
            request=replace(
                request,
                backward=level != AOT and ambient.gradients and request.backward is not False,
                no_grad=level == AOT or not (ambient.gradients or ambient.inference),
                inference_mode=level != AOT and ambient.inference,
                autocast=ambient.autocast if level != AOT else None,
            ),
            random=ambient.random,
            origin=origin,
            environment=environment(ambient.device),
        )


def device_of(inputs: list[Any]) -> torch.device:
    """Return the device that a graph runs on: the first that is not the CPU."""
    devices = [value.device for value in inputs if isinstance(value, torch.Tensor) and value.device.type != "cpu"]
    return devices[0] if devices else torch.device("cpu")


def random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """Return where torch's generators stand."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[str(device)] = torch.get_device_module(device.type).get_rng_state(device)
    return states
