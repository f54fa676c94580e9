"""What nodes of graphs, their inputs and their lines are called: one place for all of it."""

from __future__ import annotations

import functools
import importlib.util
import keyword
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity import torchapi
from torchparity.records import THROUGH

# What reads a size off an input.
SIZE_READERS = ("getattr", "getitem", "size", "stride")
# What counts how often torch is used for something (a list of modules that is sliced, say), and computes nothing.
COUNTERS = ("_log_api_usage_once",)
# What a node of a graph that was loaded is told its source line by.
LINE = "source line"
# Names that torch.fx lets generated code use without an import of its own.
GIVEN = {"torch", "NoneType", "fx_pytree", "pytree"}
ALWAYS = {"inf": "from math import inf", "nan": "from math import nan", "device": "from torch import device"}
# Operators that only pick, measure or pass on.
BOOKKEEPING = (
    "getitem",
    "sym_size",
    "sym_stride",
    "sym_numel",
    "_enter_autocast",
    "_exit_autocast",
    "__exit__",
    "_set_grad_enabled",
)


def operation_name(node: Node) -> str:
    """Return the operation's name without its overload: `add`, `relu`, `cond`."""
    return torchapi.target_name(node.target)


def called_name(node: Node) -> str:
    """Return what a node calls, as short as it stays clear: `torch.nn.functional.gelu`, `aten.add.Tensor`."""
    if node.op != "call_function" or isinstance(node.target, torchapi.OpOverload):
        return str(node.target)
    module = getattr(node.target, "__module__", "") or ""
    return (
        f"{module}.{operation_name(node)}"
        if module.startswith("torch") and "._" not in module
        else operation_name(node)
    )


def is_operation(node: Node) -> bool:
    """Tell whether a node computes something, and does not only pick, measure or pass on."""
    if node.op == "call_module":
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    name = operation_name(node)
    if name == "getitem" and not isinstance(node.args[1], int):
        return True
    value = node.meta.get("val", node.meta.get("example_value"))
    is_number = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float)
    return not name.split(".")[0].endswith(BOOKKEEPING) and not is_number


def input_names(graph_module: GraphModule) -> dict[Node, str]:
    """Return what the source calls each input: `L_self_modules_head_parameters_weight_` is `head_weight`."""
    names: dict[Node, str] = {}
    taken = set(keyword.kwlist) | GIVEN | set(ALWAYS) | {"self", "attach", "read"}
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            plain = re.sub(r"^[lL]_|(?<![a-zA-Z])(self|modules|parameters|buffers)_|_+$", "", node.name)
            name = plain if plain.isidentifier() else node.name
            number = 2
            while name in taken:
                name, number = (
                    f"{plain}_{number}" if f"{plain}_2".isidentifier() else f"{node.name}_{number}",
                    number + 1,
                )
            taken.add(name)
            names[node] = name
    return names


def attribute(module: torch.nn.Module, target: str) -> Any:
    """Return what a `get_attr` node fetches."""
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value


# --- the user's lines ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def is_installed(path: Path) -> bool:
    """Tell whether a file belongs to Python or to an installed package."""
    homes = [Path(entry) for entry in sys.path if "site-packages" in entry or "dist-packages" in entry]
    standard = importlib.util.find_spec("json")
    if standard is not None and standard.origin is not None:
        homes.append(Path(standard.origin).parent.parent)
    torchparity_home = Path(__file__).resolve().parents[1]
    return any(path.resolve().is_relative_to(home.resolve()) for home in [*homes, torchparity_home])


def user_lines(graph_module: GraphModule) -> Iterator[str]:
    """Yield the user's source lines that a graph comes from, as `file:line in function`, each once, in order."""
    lines = (line_of(node).partition(": ")[0] for node in graph_module.graph.nodes)
    yield from dict.fromkeys(line for line in lines if line)


def node_lines(graph_module: GraphModule) -> list[str]:
    """Return the user's source line of every operation, in order: `file:line in function: code`, or nothing."""
    return [line_of(node) for node in operations(graph_module)]


def operations(graph_module: GraphModule) -> list[Node]:
    """Return the nodes that call something, in order; but for what only counts how often torch is used for something.

    That stands in a graph of Dynamo's, is called while the graph is loaded, and is not in what is loaded.
    """
    called = [node for node in graph_module.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
    return [node for node in called if operation_name(node) not in COUNTERS]


def line_of(node: Node) -> str:
    """Return the source line that a node comes from: the innermost of the user's own, else of what torch is not.

    Where the user's line calls a library that computes it, the library's line follows.
    """
    if LINE in node.meta:
        return str(node.meta[LINE])
    trace = node.meta.get("stack_trace") or node.stack_trace or ""
    frames = re.findall(r'File "(.+?)", line (\d+), in (\S+)(?:\n[ \t]*(?!File ")(\S.*))?', trace)
    if not frames:
        return ""
    own = [frame for frame in frames if not is_installed(Path(frame[0]))]
    others = [frame for frame in frames if not Path(frame[0]).is_relative_to(Path(torch.__file__).parent)]
    text = frame_text(*(own or others or frames)[-1])
    return f"{text}{THROUGH}{frame_text(*others[-1])}" if own and others and others[-1] != own[-1] else text


def frame_text(file: str, number: str, function: str, code: str) -> str:
    """Return a frame in one line."""
    return f"{file}:{number} in {function}: {code.strip()}" if code.strip() else f"{file}:{number} in {function}"


def with_lines(graph_module: GraphModule, lines: Sequence[str]) -> GraphModule:
    """Return a graph whose operations know the source lines that they came from, where each has one.

    A graph with symbolic sizes begins with reading them off its inputs, which the graph it was printed from did not.
    """
    found = operations(graph_module)
    while len(found) > len(lines) and operation_name(found[0]) in SIZE_READERS:
        found = found[1:]
    if len(found) == len(lines):
        for node, line in zip(found, lines, strict=True):
            node.meta[LINE] = line
    return graph_module
