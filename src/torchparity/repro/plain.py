"""The final script of a small case: a plain function, inputs that a few words say, `torch.compile`, an assertion.

What a maintainer gets to read. It needs torch alone and no file; a case that cannot be said so has no plain script,
and keeps the one of its bundle.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchparity import torchapi
from torchparity.compilers.recipe import Recipe
from torchparity.records import Kind
from torchparity.repro.fills import fill_source, stride_order
from torchparity.repro.names import ALWAYS, GIVEN, input_names, operation_name
from torchparity.repro.source import Source, draws, import_line
from torchparity.repro.values import literal
from torchparity.version import __version__

# Kinds of difference that a few lines can assert.
CLOSE = (
    *(Kind.VALUE, Kind.BIAS, Kind.NONFINITE, Kind.INTEGER, Kind.MUTATION, Kind.OBJECT),
    *(Kind.STRUCTURE, Kind.DTYPE, Kind.SHAPE, Kind.DEVICE, Kind.LAYOUT),
)  # fmt: skip
# Kinds that are a fact about results, and not a value: what a run gives back instead of them. Whose memory a tensor is
# stands as the place of the first one that has it, inputs before results.
FACTS = {
    Kind.STRIDE.value: ["return [entry.stride() for entry in {results}]"],
    Kind.REQUIRES_GRAD.value: ["return [entry.requires_grad for entry in {results}]"],
    Kind.ALIAS.value: [
        "owners = [entry.untyped_storage().data_ptr() for entry in ({inputs}, {parts})]",
        "return [owners.index(owner) for owner in owners]",
    ],
}
LONG = 40
SEED = "torch.manual_seed(0)"
# What Python's own operators are called that write to their first argument.
IN_PLACE = (
    "setitem",
    *(name for name in dir(operator) if re.fullmatch(r"i(add|sub|mul|\w+div|mod|pow|matmul|and|x?or|[lr]shift)", name)),
)


@dataclass(frozen=True, kw_only=True)
class Plain:
    """What a plain script is made of."""

    graph_module: GraphModule
    inputs: Sequence[Any]
    recipe: Recipe
    kind: str
    backward: bool = False
    without_gradients: str = ""
    autocast: tuple[str, str] | None = None
    tolerance: float | None = None
    environment: Mapping[str, Any]

    @property
    def draws(self) -> bool:
        """Whether the graph draws random numbers: both runs must draw the same."""
        return any(draws(node) for node in self.graph_module.graph.nodes)


def write_plain(plain: Plain) -> str | None:
    """Return the text of the script, or None where the case cannot be said in a few words."""
    graph_module = plain.graph_module
    if any(node.op in ("get_attr", "call_module") for node in graph_module.graph.nodes):
        return None
    if len(graph_module.graph.nodes) - len(plain.inputs) > LONG:
        return None
    if plain.draws:
        plain = replace(plain, recipe=plain.recipe.with_eager_random(graph=True))
    imports, backend = plain.recipe.backend_source()
    engine = plain.recipe.engine.plain_definitions if plain.recipe.engine is not None else ""
    if "tempfile." in engine:
        imports = [*imports, "import tempfile"]
    source = Source()
    function = function_source(graph_module, source)
    names = list(input_names(graph_module).values())
    inputs = input_sources(plain.inputs, names)
    check = assertion(plain)
    if check is None or source.files or any(entry is None for entry in inputs):
        return None
    mutates = writes_to_inputs(plain)
    lines = [
        f'"""{title(plain)}',
        "",
        f"{versions(plain.environment)}. Found by torchparity {__version__}.",
        '"""',
        "",
        *sorted({"import torch", *imports, *source.imports}),
        *(torchapi.undoing_defaults() if imports else ()),
        "",
        *plain.recipe.settings_source(),
        "",
        *function,
        "",
        "",
        *([*engine.splitlines(), "", ""] if engine else []),
        *body(plain, names, [str(entry) for entry in inputs], compiled(plain.recipe, backend), check, fresh=mutates),
    ]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).rstrip() + "\n"


def title(plain: Plain) -> str:
    """Return what is wrong, in one line."""
    names = dict.fromkeys(operation(node) for node in plain.graph_module.graph.nodes if node.op.startswith("call"))
    call = f"torch.compile(backend={plain.recipe.backend_name()!r})"
    if plain.recipe.backend == "inductor":
        call = "torch.compile"
    elif plain.recipe.engine is not None:
        call = plain.recipe.engine.name
    told = f"{what_fails(call, plain.kind)}: {', '.join(names)}{' (gradient)' if plain.backward else ''}"
    return told.replace("\\", "/")


def what_fails(call: str, kind: str) -> str:
    """Return what is wrong with what a call compiles, in a few words."""
    return {
        Kind.RAISES.value: f"{call} raises, eager does not",
        Kind.CRASHES.value: f"{call} crashes the process, eager does not",
        Kind.ACCEPTS_INVALID.value: f"{call} accepts what eager refuses",
    }.get(kind, f"{call} differs from eager in {kind.replace('_', ' ')}")


def operation(node: torch.fx.Node) -> str:
    """Return the name of an operation as people say it."""
    return operation_name(node).removeprefix("<built-in function ").removesuffix(">")


def versions(environment: Mapping[str, Any]) -> str:
    """Return the versions that matter."""
    return ", ".join(f"{name} {environment[name]}" for name in ("torch", "python", "platform") if name in environment)


def function_source(graph_module: GraphModule, source: Source) -> list[str]:
    """Return the graph as a plain function."""
    graph = torchapi.plain_copy(graph_module.graph, input_names(graph_module))
    code = graph.python_code("self", verbose=False)
    for name, value in code.globals.items():
        if name in ALWAYS:
            if re.search(rf"\b{name}\b", code.src):
                source.imports.add(ALWAYS[name])
        elif name not in GIVEN:
            source.imports.add(import_line(name, value, source))
    lines = []
    for line in code.src.strip().splitlines():
        text = re.sub(r";  (\w+ = )+None$", "", line)
        text = re.sub(r"^def forward\(self(, )?", "def f(", text)
        text = re.sub(r"^(def f\(.*\)) *->.*:$", r"\1:", text)
        if text.startswith("def "):
            text = re.sub(r"(\w+) *: *[^,)]+", r"\1", text)
        lines.append(text)
    returned = re.fullmatch(r"    return \((\w+),\)", lines[-1])
    if returned is not None:
        lines[-1] = f"    return {returned[1]}"
    return lines


def input_sources(values: Sequence[Any], names: Sequence[str]) -> list[str | None]:
    """Return an expression for each input; one that lies in the memory of an earlier one is made from that."""
    made: list[str | None] = []
    for place, value in enumerate(values):
        shared = (shared_source(values[earlier], names[earlier], value) for earlier in range(place))
        made.append(next(filter(None, shared), None) or input_source(value))
    return made


def shared_source(owner: Any, name: str, value: Any) -> str:
    """Return an expression for an input in the memory of another; nothing where it does not lie in it.

    A case holds memory, and not which tensor is a view of which: neither does this.
    """
    if not all(type(entry) in (torch.Tensor, torch.nn.Parameter) for entry in (owner, value)):
        return ""
    if not all(entry.layout == torch.strided and entry.numel() for entry in (owner, value)):
        return ""
    begin = value.storage_offset() - owner.storage_offset()
    end = begin + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    one = owner.untyped_storage().data_ptr() == value.untyped_storage().data_ptr() and owner.dtype == value.dtype
    if not one or not owner.is_contiguous() or begin < 0 or end >= owner.numel():
        return ""
    if value.is_contiguous() and value.numel() == owner.numel():
        made = f"{name}.detach().view({list(value.shape)})"
    else:
        made = f"{name}.detach().as_strided({list(value.shape)}, {list(value.stride())}, {begin})"
    return f"{made}.requires_grad_()" if value.requires_grad else made


def input_source(value: Any) -> str | None:
    """Return an expression for an input, or None where only data says it."""
    if not isinstance(value, torch.Tensor):
        return literal(value)
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
        return None
    made = fill_source(value)
    if made is None:
        return None
    if value.device.type != "cpu":
        made += f".to({str(value.device)!r})"
    if not value.is_contiguous():
        order = stride_order(value)
        dense = value.detach().permute(order)
        if not dense.is_contiguous():
            return None
        back = [order.index(axis) for axis in range(value.dim())]
        made = f"{made}.permute({order}).contiguous().permute({back})"
    return f"{made}.requires_grad_()" if value.requires_grad else made


def compiled(recipe: Recipe, backend: str) -> str:
    """Return the call that compiles; the usual backend need not be named."""
    if recipe.engine is not None:
        return recipe.engine.plain_call("f", recipe.options)
    return recipe.call_source("f") if backend == repr("inductor") else recipe.call_source("f", f"backend={backend}")


def writes_to_inputs(plain: Plain) -> bool:
    """Tell whether the graph changes what it is given, as far as names tell (`add_`, `out=`)."""
    return any(
        node.op.startswith("call")
        and (operation(node).endswith("_") or "out" in node.kwargs or operation(node) in IN_PLACE)
        for node in plain.graph_module.graph.nodes
    )


def assertion(plain: Plain) -> list[str] | None:
    """Return the lines that fail where the results differ; None where no few lines can tell."""
    if plain.kind in (Kind.RAISES.value, Kind.CRASHES.value, Kind.ACCEPTS_INVALID.value):
        return []
    if plain.kind in FACTS:
        return ["assert actual == expected, (actual, expected)"]
    if plain.kind not in [kind.value for kind in CLOSE]:
        return None
    tolerance = f", rtol=0, atol={plain.tolerance:.2g}" if plain.tolerance is not None else ""
    return [f"torch.testing.assert_close(actual, expected{tolerance}, equal_nan=True)"]


def body(plain: Plain, names: list[str], inputs: list[str], call: str, check: list[str], *, fresh: bool) -> list[str]:
    """Return the lines that run the function both ways and compare."""
    arguments = ", ".join(names)
    managers = [f'torch.autocast("{plain.autocast[0]}", dtype=torch.{plain.autocast[1]})'] if plain.autocast else []
    if plain.without_gradients and any(wants_gradient(value) for value in plain.inputs):
        managers.append(f"torch.{plain.without_gradients}()")
    around = f"    with {', '.join(managers)}:" if managers else ""
    if plain.kind == Kind.ACCEPTS_INVALID.value:
        return refusal(arguments, names, inputs, call)
    if plain.backward or fresh or around or plain.kind in FACTS:
        gradients = [name for name, value in zip(names, plain.inputs, strict=True) if wants_gradient(value)]
        written = [name for name, value in zip(names, plain.inputs, strict=True) if isinstance(value, torch.Tensor)]
        lines = ["def run(function):", *([f"    {SEED}"] if plain.draws else [])]
        lines += [f"    {name} = {entry}" for name, entry in zip(names, inputs, strict=True)]
        lines += (
            [around, f"        result = function({arguments})"] if around else [f"    result = function({arguments})"]
        )
        if plain.kind in FACTS:
            lines += [f"    {line}" for line in fact(plain, written)]
        elif plain.backward:
            elsewhere = any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in plain.inputs)
            place = ", device=entry.device" if elsewhere else ""
            lines += [
                "    results = result if isinstance(result, tuple) else (result,)",
                f"    sum((entry * torch.linspace(0.5, 1.5, entry.numel(){place}).reshape(entry.shape)).sum()",
                "        for entry in results if entry.requires_grad).backward()",
                f"    return {', '.join([*(f'{name}.grad' for name in gradients)])},",
            ]
        elif fresh:
            lines += [f"    return {', '.join(['result', *written])}"]
        else:
            lines += ["    return result"]
        setup, eager, other, seed = [*lines, "", ""], "run(f)", f"run({call})", []
    else:
        seed = [SEED] if plain.draws else []
        setup = [*(f"{name} = {entry}" for name, entry in zip(names, inputs, strict=True)), ""]
        eager, other = f"f({arguments})", f"{call}({arguments})"
    return [
        *setup,
        *seed,
        f"expected = {eager}",
        'print("eager:   ", expected)',
        *seed,
        f"actual = {other}",
        'print("compiled:", actual)',
        *check,
    ]


def refusal(arguments: str, names: list[str], inputs: list[str], call: str) -> list[str]:
    """Return the lines that fail where the compiled function takes what eager refuses."""
    return [
        *(f"{name} = {entry}" for name, entry in zip(names, inputs, strict=True)),
        "",
        "try:",
        f"    f({arguments})",
        "except Exception as error:",
        '    print("eager refuses:", error)',
        "    torch.compiler.reset()",
        "    try:",
        f"        actual = {call}({arguments})",
        "    except Exception:",
        "        pass",
        "    else:",
        '        raise AssertionError(f"compiled accepts it: {actual}") from None',
    ]


def fact(plain: Plain, inputs: Sequence[str]) -> list[str]:
    """Return the lines that say what a fact about the results is, whether there is one result or several."""
    (returned,) = plain.graph_module.graph.output_node().args
    alone = not isinstance(returned, tuple | list) or len(returned) == 1
    words = {"inputs": ", ".join(inputs), "parts": "result" if alone else "*result"}
    return [line.format(**words, results="[result]" if alone else "result") for line in FACTS[plain.kind]]


def wants_gradient(value: Any) -> bool:
    """Tell whether an input gets a gradient."""
    return isinstance(value, torch.Tensor) and value.requires_grad
