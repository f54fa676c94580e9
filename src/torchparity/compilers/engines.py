"""Deployment engines: the whole model is exported with torch.export, and an engine runs what was exported.

They stand beside the backends of torch.compile and are named in the same place. What an engine does is a function in
`torchapi.deployed`, which a script gets as source.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compilers.printed import source_of
from torchparity.errors import UsageError
from torchparity.records import Kind
from torchparity.torchapi import deployed

# Outputs come back in memory of the engine's own: where they lie, and in which order, says nothing about the model.
OWN_MEMORY = frozenset({Kind.STRIDE, Kind.ALIAS, Kind.REQUIRES_GRAD})


def is_here(module: str) -> bool:
    """Tell whether a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine: what it needs, what runs an exported program in it, and which facts about its outputs mean nothing.

    `extra` is the extra of torchparity that installs it. An engine that `obeys_inductor` takes compiler settings.
    """

    name: str
    load: Callable[[Any, Mapping[str, Any]], deployed.Run]
    title: str
    extra: str = ""
    modules: tuple[str, ...] = ()
    ignored: frozenset[Kind] = OWN_MEMORY
    obeys_inductor: bool = False

    @property
    def installed(self) -> bool:
        """Whether everything that it needs is here."""
        return all(map(is_here, self.modules))

    def validated(self) -> Engine:
        """Return the engine, or raise where it is not installed."""
        missing = [name for name in self.modules if not is_here(name)]
        if missing:
            raise UsageError(
                f"the engine {self.name} needs {', '.join(missing)}, not installed here",
                hint=f"pip install 'torchparity[{self.extra}]'",
            )
        return self

    def build(
        self, model: Callable[..., Any], options: Mapping[str, Any], *, dynamic: bool = False
    ) -> Callable[..., Any]:
        """Return the model, exported at its first call for each set of input shapes, and run by this engine."""
        return Reporting(model, self.load, options, dynamic=dynamic)

    @functools.cached_property
    def definitions(self) -> str:
        """The source of everything that `call_source` names."""
        return source_of(self.load, deployed.flatten, deployed.Flat, deployed.rebuild, deployed.Deployed)

    @functools.cached_property
    def plain_definitions(self) -> str:
        """The source of what a plain script needs, for a function of tensors that is called once."""
        return source_of(self.load, deployed.deploy)

    def call_source(self, model: str, options: Mapping[str, Any], *, dynamic: bool) -> str:
        """Return the expression that does what `build` does."""
        return f"Deployed({model}, {self.load.__name__}, {dict(options)!r}, dynamic={dynamic})"

    def plain_call(self, function: str, options: Mapping[str, Any]) -> str:
        """Return the expression that deploys a function in a plain script."""
        return f"deploy({function}, {self.load.__name__}, {dict(options)!r})"


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep what exporters say to themselves: warnings of their own insides, the graph that they fail at."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class Reporting(deployed.Deployed):
    """A deployed model that tells a failure to deploy it from a failure to run it."""

    def deploy(self, flat: deployed.Flat, tensors: deployed.Tensors) -> deployed.Run:
        """Export the model, and hand it to the engine."""
        try:
            with quietly():
                return super().deploy(flat, tensors)
        except Exception as error:
            raise torchapi.NotDeployed(error) from error


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name="aot_inductor",
            load=deployed.with_aot_inductor,
            title="torch.export and AOTInductor",
            # Inductor promises strides; weights and gradients stay behind.
            ignored=frozenset({Kind.ALIAS, Kind.REQUIRES_GRAD}),
            obeys_inductor=True,
        ),
        Engine(
            name="onnxruntime",
            load=deployed.with_onnxruntime,
            title="torch.onnx.export and ONNX Runtime on the CPU",
            extra="onnx",
            modules=("onnxruntime", "onnx", "onnxscript"),
        ),
        Engine(
            name="openvino",
            load=deployed.with_openvino,
            title="torch.export and OpenVINO on the CPU",
            extra="openvino",
            modules=("openvino",),
        ),
    )
}


def engine_of(backend: Any) -> Engine | None:
    """Return the engine that a backend names, or None where it is a backend of torch.compile."""
    return ENGINES.get(backend) if isinstance(backend, str) else None


def graph_backend(backend: str | Callable[..., Any], options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return the function that compiles one graph of Dynamo's: a backend of torch.compile's, or an engine in its place.

    `options` are those of an engine; torch.compile hands a backend its own.
    """
    engine = engine_of(backend)
    if engine is None:
        return torchapi.backend_function(backend) if isinstance(backend, str) else backend

    def compile_graph(graph_module: Any, inputs: list[Any], **ignored: Any) -> Callable[..., Any]:
        wanted = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
        if torch.is_grad_enabled() and wanted:
            raise inference_only(engine.name)
        return engine.build(graph_module, dict(options or {}))

    compile_graph.__name__ = engine.name
    compile_graph.ignored = engine.ignored  # type: ignore[attr-defined]
    return compile_graph


def inference_only(name: str) -> UsageError:
    """Return the refusal of a backward pass."""
    return UsageError(
        f"{name} runs models, it does not train them",
        hint="leave out --train, --backward, --steps and --optimizer (train=, backward=, ...)",
    )


def engine_lines() -> list[str]:
    """Return a line for each engine: its name, what it is, and what installs it where it is not here."""
    lines = []
    for engine in ENGINES.values():
        missing = "" if engine.installed else f" (not installed: pip install 'torchparity[{engine.extra}]')"
        lines.append(f"{engine.name}  {engine.title}{missing}")
    return lines
