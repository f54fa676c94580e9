"""What is held against a model: something that can be built, held active while it runs, and let go.

Compiled    by torch.compile or an engine, as a recipe says
Afresh      the same, again before every call
Ready       a graph that was compiled before: nothing is compiled again, unless a setting must be another one
Given       no compiler: another module, or values that were computed elsewhere
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch
from torch.fx import GraphModule

from torchparity import torchapi
from torchparity.compilers.engines import graph_backend
from torchparity.compilers.recipe import Recipe
from torchparity.records import Kind
from torchparity.run.plan import Plan


class Candidate(Protocol):
    """What a judge needs to know of whatever it judges."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def traces(self) -> bool:
        """Whether Dynamo makes the graphs, so that none made means that nothing was compiled."""

    @property
    def ignored(self) -> frozenset[Kind]:
        """Facts about outputs that say nothing about the model."""

    def fitting(self, plan: Plan) -> Self:
        """Return this, or raise where it cannot do what a plan asks for."""

    @property
    def draws_its_own(self) -> bool:
        """Whether it is known to draw random numbers of its own, unless it is told not to."""

    def with_eager_random(self) -> Self:
        """Return one that draws eager's random numbers."""

    def unrecorded(self) -> Self:
        """Return one that computes the same and is not recorded, so that its memory may be prepared before each run."""

    def control(self) -> Candidate | None:
        """Return one that is right, to see what compiling as such does to random numbers; None where there is none."""

    def build(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called in the model's place."""

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Hold its settings while it runs."""

    def release(self) -> None:
        """Let go of what was built."""

    def facts(self) -> Mapping[str, Any]:
        """Return what it is, as plain data."""


# Modes in which what a device is asked is recorded at the second call, and replayed from the third on.
RECORDING_MODES = ("reduce-overhead", "max-autotune")


def replays(facts: Mapping[str, Any]) -> bool:
    """Tell whether a candidate records what a device is asked, and replays it."""
    told = {**dict(facts.get("options") or {}), **dict(facts.get("config") or {})}
    switched = any(key.endswith("triton.cudagraphs") and str(value) == "True" for key, value in told.items())
    return switched or facts.get("backend") == "cudagraphs" or facts.get("mode") in RECORDING_MODES


def tunes(facts: Mapping[str, Any]) -> bool:
    """Tell whether a candidate measures several kernels, and takes the fastest."""
    told = {**dict(facts.get("options") or {}), **dict(facts.get("config") or {})}
    switched = any("max_autotune" in key and str(value) == "True" for key, value in told.items())
    return facts.get("backend") == "inductor" and (switched or str(facts.get("mode")).startswith("max-autotune"))


@dataclass(frozen=True)
class Compiled:
    """The model, compiled as a recipe says."""

    recipe: Recipe

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.recipe.backend_name()

    @property
    def traces(self) -> bool:
        """Whether Dynamo makes the graphs."""
        return self.recipe.engine is None

    @property
    def ignored(self) -> frozenset[Kind]:
        """Facts that the backend does not promise."""
        return self.recipe.ignored

    def fitting(self, plan: Plan) -> Self:
        """Return this, or raise where an engine is asked to train."""
        self.recipe.fitting(plan)
        return self

    @property
    def draws_its_own(self) -> bool:
        """Whether it is inductor, in whatever form."""
        return self.recipe.backend == "inductor" or self.recipe.engine is not None

    def with_eager_random(self) -> Self:
        """Return one that draws eager's random numbers."""
        return replace(self, recipe=self.recipe.with_eager_random())

    def unrecorded(self) -> Self:
        """Return one without CUDA graphs, where its mode has them."""
        recorded = self.recipe.mode == "max-autotune"
        return replace(self, recipe=replace(self.recipe, mode="max-autotune-no-cudagraphs")) if recorded else self

    def control(self) -> Candidate | None:
        """Return the same compiled by a backend that is right."""
        return Compiled(replace(self.recipe, backend="aot_eager", mode=None, options={}))

    def build(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Return the compiled model."""
        return self.recipe.build(model)

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Hold the settings."""
        return self.recipe.active()

    def release(self) -> None:
        """Let the compiler forget."""
        torch.compiler.reset()

    def facts(self) -> Mapping[str, Any]:
        """Return the recipe as plain data."""
        return self.recipe.facts()


@dataclass(frozen=True)
class Afresh(Compiled):
    """The model, compiled again before every call."""

    def build(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model, compiled anew whenever it is called."""
        return lambda *args, **kwargs: self.recipe.build(model)(*args, **kwargs)


@dataclass(frozen=True)
class Keeping(Compiled):
    """The model, compiled; what it returned first is kept: later runs may be on other data."""

    kept: list[Any] = field(default_factory=list)
    copied: Callable[[Any], Any] = copy.deepcopy

    def build(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Compile, and keep copies of the results."""
        compiled = self.recipe.build(model)

        def run(*args: Any) -> Any:
            results = compiled(*args)
            if not self.kept:
                self.kept[:] = [self.copied(result) for result in results]
            return results

        return run


@dataclass(frozen=True)
class Ready(Compiled):
    """A graph of Dynamo's that its backend has compiled already, for these inputs and under this recipe."""

    inputs: tuple[Any, ...] = ()
    compiled: Callable[..., Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def traces(self) -> bool:
        """Dynamo has done its part."""
        return False

    def release(self) -> None:
        """Leave Dynamo alone: the user's program may be in the middle of it."""

    def build(self, model: Any) -> Callable[..., Any]:
        """Return what the backend made of the graph; make it again where a setting is another one."""
        made = self.compiled
        if made is None or dict(self.recipe.config) != dict(self.config):
            made = compile_graph(self.recipe, copy_on_same_tensors(model), list(self.inputs))

        def call(*args: Any) -> Any:
            outputs = made(*args)
            return tuple(outputs) if isinstance(outputs, list) else outputs  # Dynamo takes either.

        return call


@dataclass(frozen=True)
class Given:
    """Something else than a compiler's work in the model's place, which shares the model's parameters."""

    call: Callable[..., Any]
    name: str = "eager"
    traces: bool = False
    draws_its_own: bool = False
    ignored: frozenset[Kind] = frozenset()

    def fitting(self, plan: Plan) -> Self:
        """Return this: it can do what the model can."""
        return self

    def with_eager_random(self) -> Self:
        """Return this: it is eager."""
        return self

    def unrecorded(self) -> Self:
        """Return this: nobody records it."""
        return self

    def control(self) -> Candidate | None:
        """There is no compiler to compare with."""
        return None

    def build(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Return it."""
        return self.call

    def active(self) -> contextlib.AbstractContextManager[None]:
        """There is nothing to hold."""
        return contextlib.nullcontext()

    def release(self) -> None:
        """There is nothing to let go."""

    def facts(self) -> Mapping[str, Any]:
        """Return what it is called."""
        return {"backend": self.name}


def compile_graph(recipe: Recipe, graph_module: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Give a graph to a backend as torch.compile gives it, with the mode and the options of the user."""
    backend = graph_backend(recipe.backend, recipe.options)
    given: dict[str, Any] = {"mode": recipe.mode} if recipe.mode not in (None, "default") else {}
    given |= {"options": dict(recipe.options)} if recipe.options else {}
    if recipe.backend == "inductor" and given:
        given = {"config_patches": torchapi.inductor_settings(recipe.mode, recipe.options)}
    with recipe.active():
        compiled: Callable[..., Any] = backend(graph_module, inputs, **given)
    return compiled


def copy_on_same_tensors(graph_module: GraphModule) -> GraphModule:
    """Return a copy of a graph that reads and writes the very tensors of the graph.

    The parameters and the state of a compiled optimizer are attributes of its graph, not inputs: on copies of them
    eager would not see what the compiled graph writes, nor could it be undone.
    """
    tensors = [*graph_module.parameters(), *graph_module.buffers()]
    held = [value for module in graph_module.modules() for value in vars(module).values()]
    tensors += [value for value in held if isinstance(value, torch.Tensor)]
    return copy.deepcopy(graph_module, {id(tensor): tensor for tensor in tensors})


@dataclass
class Some:
    """A backend that gives some of the graphs it meets to another one, and runs the others as they are."""

    recipe: Recipe
    named: Callable[[GraphModule], str]
    chosen: set[int] | None = None
    met: list[str] = field(default_factory=list)
    __name__ = "some of the graphs"

    def __call__(self, graph_module: GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        """Compile a graph that was chosen; every one where none were."""
        number = len(self.met)
        self.met.append(self.named(graph_module))
        if self.chosen is not None and number not in self.chosen:
            return graph_module.forward
        return compile_graph(self.recipe, graph_module, inputs)
