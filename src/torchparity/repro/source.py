"""A captured graph as readable source: classes with a `forward`, shapes in comments, and the imports they need."""

from __future__ import annotations

import ast
import builtins
import enum
import importlib.util
import inspect
import io
import re
import sys
import tokenize
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity import torchapi
from torchparity.errors import CaseError
from torchparity.repro.looking import SCRIPT as SCRIPT
from torchparity.repro.names import ALWAYS, GIVEN, attribute, input_names, is_installed, is_operation, operation_name
from torchparity.repro.values import literal

# Graphs up to this many nodes are printed without the assignments that free memory early.
SHORT = 60
RANDOM = re.compile(
    r"dropout|rand|bernoulli|multinomial|normal_|uniform_|exponential_|geometric_|cauchy_|poisson|rrelu"
)


@dataclass
class Source:
    """What a graph needs to be written: classes, imports, constants, and files of the user's own."""

    classes: list[str] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    compute_nodes: int = 0
    draws_random_numbers: bool = False

    def text(self) -> str:
        """Return the imports and the classes, ready to run below `import torch`."""
        parts = ["\n".join(sorted(self.imports)), *self.classes]
        return "\n\n\n".join(part for part in parts if part).strip("\n") + "\n"


def write_graph(graph_module: GraphModule) -> Source:
    """Return the source of a graph and of every graph inside it, or refuse with the reason."""
    source = Source()
    _write_class(graph_module, "Graph", source, prefix="")
    try:
        compile(source.text(), "repro.py", "exec")
    except SyntaxError as error:
        raise CaseError(
            f"the graph cannot be written as Python source: {error.msg}: {(error.text or '').strip()[:200]}",
            hint="some argument of an operation has no source form; make it a number, a string or a tensor",
        ) from None
    return source


def _write_class(graph_module: GraphModule, name: str, source: Source, prefix: str) -> None:
    """Write one graph as a class, after the graphs it calls."""
    children = []
    for target in sorted({str(node.target) for node in graph_module.graph.nodes if node.op == "get_attr"}):
        value = attribute(graph_module, target)
        if isinstance(value, GraphModule):
            child = f"{name}_{re.sub(r'[^0-9a-zA-Z_]', '_', target)}"
            _write_class(value, child, source, prefix=f"{prefix}{target}.")
            children.append(f"attach(self, {target!r}, {child}())")
        elif isinstance(value, torch.Tensor):
            source.constants[prefix + target] = value
        else:
            raise CaseError(
                f"the graph uses {target}, a {type(value).__name__}, which cannot be written down",
                hint="pass it as an input, or make it a tensor",
            )
    nodes = list(graph_module.graph.nodes)
    for node in nodes:
        _inspect(node, source)
    body = _forward(graph_module, source, short=len(nodes) <= SHORT)
    lines = [f"class {name}(torch.nn.Module):"]
    if children:
        lines += [
            "    def __init__(self):",
            "        super().__init__()",
            *(f"        {child}" for child in children),
            "",
        ]
    lines += [f"    {line}" if line.strip() else "" for line in body.splitlines()]
    source.classes.append("\n".join(lines).rstrip())


def _forward(graph_module: GraphModule, source: Source, *, short: bool) -> str:
    """Return the text of `forward`, and note what it imports."""
    graph = torchapi.plain_copy(graph_module.graph, input_names(graph_module))
    code = graph.python_code("self", verbose=True)
    for name, value in code.globals.items():
        if name in ALWAYS:
            if re.search(rf"\b{name}\b", code.src):
                source.imports.add(ALWAYS[name])
        elif name not in GIVEN:
            source.imports.add(import_line(name, value, source))
    lines = [line for line in code.src.strip("\n").splitlines() if "No stacktrace found" not in line]
    lines[:1] = folded(lines[0])
    if short:
        lines = [re.sub(r";  (\w+ = )+None$", "", line) for line in lines]
    text = "\n".join(lines)
    return re.sub(r"\n\s*\n(\s*\n)+", "\n\n", text)


def folded(line: str) -> list[str]:
    """Return the head of a function, over several lines where it is long: one for each argument."""
    if len(line) <= 100 or not line.endswith("):"):
        return [line]
    start = line.index("(") + 1
    arguments = re.split(r", (?=[A-Za-z_]\w*(?::|,|$))", line[start:-2])
    return [line[:start], *(f"    {argument}," for argument in arguments), "):"]


# --- what a node is made of ----------------------------------------------------------------------


def _inspect(node: Node, source: Source) -> None:
    """Count a node, note what its operator needs, and refuse what source cannot say."""
    if node.op == "call_module":
        raise CaseError(
            f"the graph calls the module {node.target}, whose code is not part of the graph",
            hint="capture with torch.compile, which traces into modules, or trace with more detail",
        )
    if node.op not in ("call_function", "call_method"):
        return
    name = operation_name(node)
    source.compute_nodes += is_operation(node)
    source.draws_random_numbers |= draws(node)
    if "triton_kernel_wrapper" in name:
        raise CaseError(
            f"{node.name} runs a Triton kernel of the user's, known to this process only by its number",
            hint="wrap the kernel with torch.library.triton_op in an importable module",
        )
    for value in torchapi.tree_leaves([list(node.args), dict(node.kwargs)]):
        _inspect_argument(node, value)
    if isinstance(node.target, torchapi.OpOverload):
        _import_operator(node.target, source)


def _inspect_argument(node: Node, value: Any) -> None:
    if isinstance(value, Node | torch.SymInt | torch.SymFloat | torch.SymBool | enum.Enum | type):
        return
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, torchapi.OpOverload)):
        return
    if isinstance(value, slice):
        for end in (value.start, value.stop, value.step):
            _inspect_argument(node, end)
        return
    if literal(value) is None:
        raise CaseError(
            f"{node.name} takes a {type(value).__name__}, which source cannot say",
            hint="make it a number, a string or a tensor",
        )


def draws(node: Node) -> bool:
    """Tell whether an operation draws random numbers, as far as its name or its tags tell."""
    tagged = isinstance(node.target, torchapi.OpOverload) and torchapi.is_random(node.target)
    named = tagged or bool(RANDOM.search(str(node.target)))
    return node.op.startswith("call") and named and not drops_nothing(node)


def drops_nothing(node: Node) -> bool:
    """Tell whether an operation is a dropout outside of training: `dropout(x, p, training)` in all its forms."""
    training = node.kwargs.get("training", node.kwargs.get("train", node.args[2] if len(node.args) > 2 else None))
    return "dropout" in str(node.target) and training is False


# --- imports -------------------------------------------------------------------------------------


def import_line(name: str, value: Any, source: Source) -> str:
    """Return the line that makes a name mean what it means in the graph."""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if value in vars(builtins).values() and qualified:
        return f"{name} = {qualified}"
    if not module or not qualified or "<locals>" in qualified:
        raise CaseError(
            f"the graph uses {qualified or name}, which has no name to import it by",
            hint="move it to the top level of a module",
        )
    carry_module(module, qualified, source)
    if "." in qualified:
        return f"import {module}\n{name} = {module}.{qualified}"
    return f"from {module} import {qualified}" + (f" as {name}" if name != qualified else "")


def _import_operator(operator: Any, source: Source) -> None:
    """Note the import that registers a custom operator, and carry its file along where it is the user's own."""
    namespace = torchapi.base_name(operator).split("::")[0]
    if torchapi.is_builtin_namespace(namespace):
        return
    module = torchapi.operator_module(operator)
    if module is None:
        raise CaseError(
            f"the custom operator {torchapi.base_name(operator)} does not tell which module registers it",
            hint="register it with torch.library.custom_op in an importable module",
        )
    carry_module(module, torchapi.base_name(operator), source)
    source.imports.add(f"import {module}")


def carry_module(module: str, what: str, source: Source) -> None:
    """See to it that a module can be imported: installed ones by name, the user's own as a copy beside the script."""
    loaded = sys.modules.get(module)
    if loaded is None and module != "__main__" and is_installed_module(module):
        return
    path = inspect.getsourcefile(loaded) if loaded is not None and getattr(loaded, "__file__", None) else None
    if module != "__main__" and path is not None and is_installed(Path(path)):
        return
    if module != "__main__" and loaded is not None and path is None:
        return  # Built in.
    if module == "__main__" or path is None or "." in module or hasattr(loaded, "__path__"):
        raise CaseError(
            f"{what} is defined in {module}, which another process cannot import",
            hint="put it into a module of its own, a file beside the model",
        )
    name = f"{module}.py"
    if name == SCRIPT:
        raise CaseError(f"{what} is defined in {name}, as the script of a bundle is called", hint="rename the file")
    if name not in source.files:
        source.files[name] = module_text(Path(path))
        for other in sorted(imported_modules(source.files[name]) & set(sys.modules)):
            carry_module(other, f"a part of {module}", source)


def is_installed_module(module: str) -> bool:
    """Tell whether a module that nobody has imported here yet belongs to Python or to an installed package."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and (spec.origin in (None, "built-in", "frozen") or is_installed(Path(str(spec.origin))))


def module_text(path: Path) -> str:
    """Return the text of a Python file, or refuse: a bundle holds UTF-8."""
    data = path.read_bytes()
    try:
        if tokenize.detect_encoding(io.BytesIO(data).readline)[0] in ("utf-8", "utf-8-sig"):
            return importlib.util.decode_source(data)
    except (SyntaxError, UnicodeDecodeError):
        pass
    raise CaseError(f"{path.name} is not written in UTF-8", hint="save it in UTF-8, and capture again")


def imported_modules(text: str) -> set[str]:
    """Return the first part of every name that a file imports, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found
