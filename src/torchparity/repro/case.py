"""A case: one graph, its exact inputs, and how it was compiled. Frozen; identity is a digest."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchparity import torchapi
from torchparity.compilers.recipe import Recipe, is_lost, recipe_plain
from torchparity.compilers.written import request_to_json
from torchparity.errors import CaseError
from torchparity.records import Signature
from torchparity.repro import names as names_of
from torchparity.repro import source
from torchparity.repro.looking import digest_of
from torchparity.repro.values import (
    Dense,
    Literal,
    Storage,
    Storages,
    Symbol,
    Value,
    Wrapper,
    encode,
    encode_tensor,
    size_of,
    to_json,
)
from torchparity.request import PLAIN, Request

# As the model calls torch, as Dynamo hands it on, as AOTAutograd does.
LEVELS = ("program", "dynamo", "aot")
DIRECTIONS = ("forward", "backward", "both")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Everything that is needed to see one graph compute, eager and compiled, in any process.

    `graph` is source: imports, then classes, the last of which is `Graph`. `inputs` stand in the order of its
    arguments. `files` are modules of the user's that the source imports. `origin` tells where it was captured,
    `signature` how it failed; neither is part of its identity.
    """

    name: str
    level: str
    direction: str
    graph: str
    inputs: tuple[tuple[str, Value], ...]
    constants: tuple[tuple[str, Value], ...] = ()
    random: tuple[tuple[str, Dense], ...] = ()
    storages: tuple[Storage, ...] = ()
    request: Request = PLAIN
    compute_nodes: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    signature: Signature | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    # Whether it was made here, by this user: what comes from elsewhere is looked at before it is run.
    trusted: bool = field(default=True, compare=False)

    @functools.cached_property
    def digest(self) -> str:
        """The identity of a case: what it computes, from what, and how it is compiled."""
        return digest_of(self.facts())

    def facts(self) -> dict[str, Any]:
        """Return what makes the case the case that it is, as plain data."""
        return dict(self._facts)

    @functools.cached_property
    def _facts(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "direction": self.direction,
            "graph": hashlib.sha256(self.graph.encode()).hexdigest(),
            "inputs": [[name, to_json(value)] for name, value in self.inputs],
            "constants": [[name, to_json(value)] for name, value in self.constants],
            "random": [[device, to_json(state)] for device, state in self.random],
            "storages": [
                {
                    "device": storage.device,
                    "bytes": storage.data.numel(),
                    "fingerprint": storage.fingerprint,
                }
                for storage in self.storages
            ],
            "request": request_to_json(self.request),
            "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(self.files.items())},
        }

    @property
    def recipe(self) -> Recipe:
        """How it is compiled; whether this machine can is not asked."""
        return recipe_plain(self.request)

    @property
    def backward(self) -> bool:
        """Whether it is run with gradients, and backwards."""
        return self.request.gradients

    @property
    def device(self) -> str:
        """The device that it runs on: the first that is not the CPU."""
        return next((storage.device for storage in self.storages if storage.device != "cpu"), "cpu")

    @property
    def autocast(self) -> tuple[str, str] | None:
        """Kind of device and dtype of the autocast region that it runs in."""
        return (self.device.split(":")[0], self.request.autocast) if self.request.autocast is not None else None

    @property
    def symbols(self) -> dict[str, Symbol]:
        """The sizes that the compiler knows by name."""
        return {name: value for name, value in self.inputs if isinstance(value, Symbol)}


@dataclass(frozen=True, kw_only=True)
class WrittenGraph:
    """A graph as it was when it was compiled: its source, and what its inputs are called and sized by."""

    source: source.Source
    names: tuple[str, ...]
    lines: tuple[str, ...]
    nodes: tuple[str, ...]
    symbols: Mapping[str, str]
    sizes: Mapping[str, str]


def write_graph(graph_module: GraphModule, inputs: list[Any]) -> WrittenGraph:
    """Write a graph down while it is being compiled (compilers change graphs, so later is too late), or refuse."""
    named = names_of.input_names(graph_module)
    names = list(named.values())
    sizes: dict[str, str] = {}
    for node, name in named.items():
        value = node.meta.get("val", node.meta.get("example_value"))
        shape: tuple[Any, ...] = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        for axis, size in enumerate(shape):
            if isinstance(size, torch.SymInt):
                sizes.setdefault(torchapi.symbol_expression(size), f"{name}.shape[{axis}]")
    symbols = {
        name: torchapi.symbol_expression(value)
        for name, value in zip(names, inputs, strict=False)
        if isinstance(value, torch.SymInt)
    }
    return WrittenGraph(
        source=source.write_graph(graph_module),
        names=tuple(names),
        lines=tuple(names_of.user_lines(graph_module)),
        nodes=tuple(names_of.node_lines(graph_module)),
        symbols=symbols,
        sizes=sizes,
    )


def make_case(
    graph: WrittenGraph,
    inputs: list[Any],
    *,
    name: str,
    level: str,
    direction: str,
    request: Request,
    random: Mapping[str, torch.Tensor] | None = None,
    origin: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Case:
    """Return the case of a graph and the inputs it is about to be called with, or refuse."""
    if len(graph.names) != len(inputs):
        raise CaseError(
            f"the graph takes {len(graph.names)} inputs and {len(inputs)} were given",
            hint="give one value for each placeholder, in order",
        )
    held = Storages()
    encoded = []
    for input_name, value in zip(graph.names, inputs, strict=True):
        if input_name in graph.symbols and not isinstance(value, torch.Tensor):
            encoded.append(
                (input_name, symbol_value(size_of(value, input_name), graph.symbols[input_name], graph.sizes))
            )
        else:
            encoded.append((input_name, encode(value, input_name, held)))
    if request.dynamic is None and any(isinstance(value, Symbol) for _, value in encoded):
        request = replace(request, dynamic=True)
    if graph.source.draws_random_numbers:
        request = replace(request, config=recipe_plain(request).with_eager_random(graph=True).config)
    constants = [(path, encode_tensor(value, path, held)) for path, value in sorted(graph.source.constants.items())]
    files = {**graph.source.files, **backend_files(recipe_plain(request)), **class_files([*encoded, *constants])}
    return Case(
        name=name,
        level=level,
        direction=direction,
        graph=graph.source.text(),
        inputs=tuple(encoded),
        constants=tuple(constants),
        random=tuple((device, held.dense(state)) for device, state in sorted((random or {}).items())),
        storages=tuple(held.found),
        request=request,
        compute_nodes=graph.source.compute_nodes,
        files=files,
        origin={"lines": list(graph.lines), "nodes": list(graph.nodes), **dict(origin or {})},
        environment=dict(environment or {}),
    )


def backend_files(recipe: Recipe) -> dict[str, str]:
    """Return the user's own files that a backend needs; refuse a backend that another process cannot find."""
    imports, expression = recipe.backend_source()
    if not isinstance(recipe.backend, str) and not imports:
        raise CaseError(
            f"the backend {expression} is not importable, so no other process can run it",
            hint="define it at the top level of a module, or register it under a name",
        )
    if isinstance(recipe.backend, str) and recipe.engine is None and is_lost(recipe.backend):
        raise CaseError(
            f"the backend {recipe.backend} is an object that no module holds, so no other process can find it",
            hint="keep it under a name of the module that registers it, or register a function",
        )
    for key, value in [*recipe.options.items(), *recipe.config.items()]:
        if not is_spoken(value):
            raise CaseError(
                f"the compiler setting {key} is a {type(value).__name__}, which source cannot say",
                hint="leave it out, or make it a number, a string, or a list or dict of these",
            )
    needed = source.Source()
    for line in imports:
        source.carry_module(line.removeprefix("import "), f"the backend {expression}", needed)
    return needed.files


def class_files(values: list[tuple[str, Value]]) -> dict[str, str]:
    """Return the user's own files that define the classes of tensors."""
    needed = source.Source()
    for _, value in values:
        if isinstance(value, Wrapper):
            source.carry_module(value.module, f"the class {value.name}", needed)
    return needed.files


def is_spoken(value: Any) -> bool:
    """Tell whether the `repr` of a value is source that makes it again."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False


def symbol_value(value: int, written: str, sizes: Mapping[str, str]) -> Value:
    """Return a size with the expression that gives it, where names and plain arithmetic can say it."""
    if written.lstrip("-").isdigit():
        return Literal(text=repr(value))
    if written in sizes:
        return Symbol(value=value, expression=sizes[written])
    tree = ast.parse(written, mode="eval")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if any(isinstance(node, ast.Call) for node in ast.walk(tree)) or not names <= set(sizes):
        return Symbol(value=value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = sizes[node.id]
    return Symbol(value=value, expression=ast.unparse(tree))
