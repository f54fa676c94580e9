"""A model as a flat program: every call of torch that it makes, in the order in which eager makes it.

The calls are those of Python, not those of ATen: what Dynamo makes of `torch.full(shape, flag)` is Dynamo's. What the
model reads beside its inputs, its parameters for instance, is an input of the program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from torchparity import torchapi

NAME = re.compile(r"\b[vpx]\d+\b")
SIGNS = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__floordiv__": "//", "__mod__": "%",
    "__matmul__": "@", "__pow__": "**", "__and__": "&", "__or__": "|", "__gt__": ">", "__lt__": "<", "__ge__": ">=",
    "__le__": "<=", "__eq__": "==", "__ne__": "!=",
}  # fmt: skip
MOST_CALLS = 5000


class NotRecordable(Exception):
    """A model whose calls cannot be written down as Python."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One call: its text, the name that it defines (none for a write), the names that it reads."""

    text: str
    defines: str
    reads: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The lines of a program, expressions for each value that a line may begin with, and what is returned.

    `plain` has small numbers of the same shape and dtype, `extreme` the largest number of the value everywhere.
    """

    lines: tuple[Line, ...]
    plain: Mapping[str, str]
    extreme: Mapping[str, str]
    returned: tuple[str, ...]

    def text(self, start: int, stop: int, written: Callable[[str], str]) -> str:
        """Return the program from one line to another; `written` tells how the value of a name is made."""
        lines = self.lines[start:stop]
        defined = {line.defines for line in lines if line.defines}
        read = list(dict.fromkeys(name for line in lines for name in line.reads if name not in defined))
        later = {name for line in self.lines[stop:] for name in line.reads}
        wanted = later | {name.partition("[")[0] for name in self.returned}
        ends = [line.defines for line in lines if line.defines in wanted]
        ends = ends or [line.defines for line in lines if line.defines][-1:]
        body = [line.text for line in lines] + [f"return {', '.join(ends)}" if ends else "return None"]
        made = [f"{name} = {written(name)}" for name in read]
        return "\n".join(
            [
                "import torch", "", f"def program({', '.join(read)}):", *(f"    {line}" for line in body), "",
                "def make():", *(f"    {line}" for line in made),
                f"    return program, ({', '.join(read)}{',' if read else ''})", "",
            ]
        )  # fmt: skip


@dataclass
class Notebook:
    """What is written down while a model runs."""

    lines: list[Line] = field(default_factory=list)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    gradients: bool = False

    def fresh(self, letter: str) -> str:
        """Return a name that is not taken."""
        self.numbers[letter] = self.numbers.get(letter, -1) + 1
        return f"{letter}{self.numbers[letter]}"

    def name(self, tensor: torch.Tensor, letter: str = "p") -> str:
        """Return a tensor's name; one that was not seen before is read from outside."""
        found = self.names.get(id(tensor))
        if found is None:
            found = self.names[id(tensor)] = self.fresh(letter)
            self.held.append(tensor)
            self.keep(found, tensor)
        return found

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        """Keep what a tensor holds now."""
        copied = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
        wanted = tensor.requires_grad and tensor.is_leaf and (self.gradients or name.startswith("x"))
        self.values[name] = copied.copy_(tensor.detach()).requires_grad_(wanted)

    def define(self, result: Any, line: Callable[[str], Line]) -> None:
        """Note a result, or the tensors in it, under a new name."""
        parts = list(result) if isinstance(result, tuple | list) else [result]
        name = self.fresh("v")
        self.lines.append(line(name))
        for place, part in enumerate(parts):
            if isinstance(part, torch.Tensor):
                known = f"{name}[{place}]" if isinstance(result, tuple | list) else name
                if id(part) not in self.names:
                    self.names[id(part)] = known
                    self.held.append(part)
                    if known == name:
                        self.keep(name, part)


class Recorder(TorchFunctionMode):
    """Writes down every call of torch, and lets it happen."""

    def __init__(self, notebook: Notebook) -> None:
        super().__init__()
        self.notebook = notebook

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("__get__", "__set__"):
            return func(*args, **kwargs)
        printed = self._printed(func, args, kwargs)
        result = func(*args, **kwargs)
        parts = list(result) if isinstance(result, tuple | list) else [result]
        if len(self.notebook.lines) > MOST_CALLS:
            raise NotRecordable(f"it calls torch more than {MOST_CALLS} times")
        reads = tuple(dict.fromkeys(NAME.findall(printed)))
        if any(isinstance(part, torch.Tensor) for part in parts):
            self.notebook.define(result, lambda name: Line(text=f"{name} = {printed}", defines=name, reads=reads))
        elif func is torch.Tensor.__setitem__:
            self.notebook.lines.append(Line(text=printed, defines="", reads=reads))
        return result

    def _printed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        name = resolve_name(func)
        if name is None:
            raise NotRecordable(f"{func} has no name")
        given = [self._text(value) for value in args]
        named = [f"{key}={self._text(value)}" for key, value in kwargs.items()]
        method = name.removeprefix("torch.Tensor.")
        if method == name:
            return f"{name}({', '.join([*given, *named])})"
        if method in SIGNS and len(given) == 2:
            return f"{given[0]} {SIGNS[method]} {given[1]}"
        if method == "__getitem__":
            return f"{given[0]}[{_index(given[1])}]"
        if method == "__setitem__":
            return f"{given[0]}[{_index(given[1])}] = {given[2]}"
        return f"{given[0]}.{method}({', '.join([*given[1:], *named])})"

    def _text(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self.notebook.name(value)
        if isinstance(value, torch.Size | tuple):
            return f"({''.join(self._text(part) + ', ' for part in value)})".replace(
                ", )", ",)" if len(value) == 1 else ")"
            )
        if isinstance(value, list):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, slice):
            parts = [value.start, value.stop, value.step]
            return f"slice({', '.join(map(self._text, parts))})"
        if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
            return f"float('{value}')"
        if value is None or value is Ellipsis or isinstance(value, bool | int | float | str | complex):
            return "..." if value is Ellipsis else repr(value)
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return str(value)
        if isinstance(value, torch.device):
            return repr(value)
        raise NotRecordable(f"an argument is a {type(value).__name__}")


def _index(text: str) -> str:
    return text[1:-1].rstrip(",") if text.startswith("(") and text.endswith(")") and len(text) > 2 else text


def record(
    model: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any], *, gradients: bool = False
) -> tuple[Recorded, dict[str, torch.Tensor]]:
    """Run a model once; return what it called, and what every name held.

    What the model reads beside its inputs asks for a gradient only with `gradients`: else nobody looks at it.
    """
    notebook = Notebook(gradients=gradients)
    for value in torchapi.tree_leaves((list(args), dict(kwargs))):
        if isinstance(value, torch.Tensor):
            notebook.name(value, "x")
    with Recorder(notebook):
        result = model(*args, **kwargs)
    tensors = [leaf for leaf in torchapi.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    found = Recorded(
        lines=tuple(notebook.lines),
        plain={name: plain_value(value) for name, value in notebook.values.items()},
        extreme={name: extreme_value(value) for name, value in notebook.values.items()},
        returned=tuple(dict.fromkeys(notebook.names[id(leaf)] for leaf in tensors if id(leaf) in notebook.names)),
    )
    return found, notebook.values


def plain_value(tensor: torch.Tensor) -> str:
    """Return an expression for a tensor of the same shape and dtype, of small numbers."""
    shape = ", ".join(map(str, tensor.shape)) or "()"
    numbers = f"(torch.arange({tensor.numel()}) * 7 % 9 - 4).view({shape})"
    if tensor.dtype is torch.bool:
        text = f"({numbers} > 0)"
    elif tensor.is_floating_point():
        text = f"({numbers} / 4).to({tensor.dtype})"
    else:
        text = f"{numbers}.abs().to({tensor.dtype})"
    return f"{text}.requires_grad_()" if tensor.requires_grad else text


def extreme_value(tensor: torch.Tensor) -> str:
    """Return an expression for a tensor of the same shape and dtype that holds its largest number everywhere."""
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.dtype in (torch.int64, torch.int32)):
        return plain_value(tensor)
    flat = tensor.detach().reshape(-1)
    largest = flat[flat.double().abs().argmax()].item()
    largest = float(f"{largest:.3g}") if tensor.is_floating_point() else largest
    if not math.isfinite(largest):
        return plain_value(tensor)
    text = f"torch.full({tuple(tensor.shape)}, {largest!r}, dtype={tensor.dtype})"
    return f"{text}.requires_grad_()" if tensor.requires_grad else text
