"""A model's own calls of torch as a graph, written down while it runs: no compiler has had a hand in it.

Where Dynamo itself is wrong, its graph is wrong in the same way, and eager and compiled agree on it. This graph is
what the model asked torch for, one call after another, so that compiling it shows what Dynamo makes of it.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode

from torchparity import torchapi
from torchparity.errors import CaseError
from torchparity.observe.capture import Ambient, observed_case
from torchparity.repro.case import Case, write_graph
from torchparity.request import Request

PROGRAM = "program"


class ProgramTracer(TorchFunctionMode):
    """Runs every call of torch, and writes it down as a node."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()
        self.nodes: dict[int, Node] = {}
        self.inputs: list[torch.Tensor] = []
        self.error: str = ""
        # An object that went away would lend its identity to another one.
        self._alive: list[torch.Tensor] = []
        self._last: Node | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run one call; write it down where it gives tensors, or changes some."""
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") == "__set__":
            self.error = f"the model sets {getattr(func.__self__, '__name__', 'an attribute')} of a tensor"
        given = [leaf for leaf in torchapi.tree_leaves([args, kwargs]) if isinstance(leaf, torch.Tensor)]
        for tensor in given:
            self._node(tensor)
        versions = [torchapi.version_of(tensor) for tensor in given]
        arguments = map_aggregate(tuple(args), self._argument), dict(map_aggregate(kwargs, self._argument))
        result = func(*args, **kwargs)
        arguments[1].update(defaults_of(func, args, kwargs, result))
        changed = versions != [torchapi.version_of(tensor) for tensor in given]
        leaves = torchapi.tree_leaves(result)
        if changed or any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            self._write(func, arguments, result)
        return result

    def _write(self, func: Any, arguments: tuple[Any, Any], result: Any) -> None:
        node = self._call(func, *arguments)
        node.meta["stack_trace"] = calls_inside()
        if isinstance(result, torch.Tensor):
            self._remember(result, node)
        elif isinstance(result, tuple | list):
            for place, entry in enumerate(result):
                if isinstance(entry, torch.Tensor):
                    self._remember(entry, self.graph.call_function(operator.getitem, (node, place)))

    def _call(self, func: Any, args: Any, kwargs: Any) -> Node:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self.graph.call_function(getattr, (args[0], func.__self__.__name__))
        if isinstance(args[0] if args else None, Node) and getattr(torch.Tensor, name, None) is func:
            return self.graph.call_method(name, args, kwargs)
        return self.graph.call_function(func, args, kwargs)

    def _argument(self, value: Any) -> Any:
        return self.nodes[id(value)] if isinstance(value, torch.Tensor) else value

    def _node(self, tensor: torch.Tensor) -> Node:
        """Return the node of a tensor; one that no call gave is an input, with the value that it has now."""
        if id(tensor) not in self.nodes:
            with torchapi.no_function_modes():
                copy = tensor.detach().clone(memory_format=torch.preserve_format)
                self.inputs.append(copy.requires_grad_(tensor.requires_grad and tensor.is_leaf))
            point = self.graph.inserting_before(None) if self._last is None else self.graph.inserting_after(self._last)
            with point:
                self._last = self.graph.placeholder(f"arg{len(self.inputs)}")
            self._remember(tensor, self._last)
        return self.nodes[id(tensor)]

    def _remember(self, tensor: torch.Tensor, node: Node) -> None:
        self.nodes[id(tensor)] = node
        self._alive.append(tensor)

    def finished(self, result: Any) -> GraphModule:
        """Return the graph, which returns the tensors of a result."""
        if self.error:
            raise CaseError(self.error, hint="minify a graph of it: `torchparity capture` writes them")
        leaves = [leaf for leaf in torchapi.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.graph.output(tuple(self._node(leaf) for leaf in leaves))
        return GraphModule({}, self.graph)


def defaults_of(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """Return what a call that makes a tensor of nothing took from torch's defaults: nobody else may have set them."""
    if func not in torchapi.device_constructors() or not isinstance(result, torch.Tensor):
        return {}
    if func in (torch.as_tensor, torch.asarray) and (len(args) > 1 or torchapi.tensors_in(args)):
        return {}
    found: dict[str, Any] = {}
    if kwargs.get("device") is None and torch.get_default_device().type != "cpu":
        found["device"] = result.device
    if kwargs.get("dtype") is None and result.is_floating_point() and torch.get_default_dtype() != torch.float32:
        found["dtype"] = result.dtype
    return found


def calls_inside() -> str:
    """Return the calls that lead from the model to torch, as a traceback prints them."""
    stack = traceback.extract_stack()
    begin = max((place for place, entry in enumerate(stack) if is_runner(entry)), default=-1)
    inside = [entry for entry in stack[begin + 1 :] if entry.filename != __file__]
    return "".join(traceback.format_list(inside))


def is_runner(entry: traceback.FrameSummary) -> bool:
    """Tell whether a frame is the one that calls the model, below."""
    return entry.filename == __file__ and entry.name == "run"


def traced_program(model: Callable[..., Any], request: Request, *, keep: list[Case]) -> Callable[..., Any]:
    """Return the model as a function that also keeps its first call as a case."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if keep:
            return model(*args, **kwargs)
        tracer = ProgramTracer()
        ambient = Ambient.around(torchapi.tree_leaves([args, kwargs]))
        with tracer:
            result = model(*args, **kwargs)
        case = observed_case(
            write_graph(tracer.finished(result), tracer.inputs),
            list(tracer.inputs),
            name="000_program",
            level=PROGRAM,
            direction="both",
            request=request,
            origin={},
            ambient=ambient,
        )
        keep.append(case)
        return result

    return run
