"""The text of a program: a function, a module that holds some of its inputs, or a function called several times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

GRADIENT = ".requires_grad_()"
# What the next call's inputs are, from the first call's: smaller, larger, of another dtype, laid out in another way.
CHANGES: tuple[str, ...] = (
    "{name}", "{name}[:-1]", "{name}[:1]", "{name}[..., :-1]", "torch.cat([{name}, {name}])", "{name}.double()",
    "{name}.mT.contiguous().mT", "{name}[1:]", "torch.stack([{name}, {name}], -1)[..., 0]",
)  # fmt: skip
# Names that lines may use and that live outside of the function.
OUTSIDE = {"seen": "[]", "state": "{}"}


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """What a program's text is made of: its inputs as expressions, its lines, what it returns, what it imports."""

    inputs: Mapping[str, str]
    lines: Sequence[str]
    returned: str
    imports: tuple[str, ...] = ()

    @property
    def body(self) -> list[str]:
        """The lines of the function."""
        return [*self.lines, f"return {self.returned}"]

    @property
    def used(self) -> list[str]:
        """The inputs that are read, and those that they are views of; at least one."""
        text = "\n".join(self.body)
        used = {name for name in self.inputs if mentions(text, name)} or set(list(self.inputs)[:1])
        for name in reversed(list(self.inputs)):
            if any(mentions(self.inputs[other], name) for other in used):
                used.add(name)
        return [name for name in self.inputs if name in used]

    @property
    def independent(self) -> list[str]:
        """The inputs that are no view of another, and of which no other is a view."""
        texts = self.inputs
        return [
            name
            for name in self.used
            if not any(mentions(texts[name], other) or mentions(texts[other], name) for other in texts if other != name)
        ]

    def head(self, *more: str) -> list[str]:
        """Return the first lines of the file."""
        text = "\n".join(self.body)
        outside = [f"{name} = {empty}" for name, empty in OUTSIDE.items() if mentions(text, name)]
        return ["import torch", *more, *self.imports, "", *outside, *([""] if outside else [])]


def as_function(sketch: Sketch) -> str:
    """`def program(a, b)`, called once."""
    names = ", ".join(sketch.used)
    made = [f"{name} = {sketch.inputs[name]}" for name in sketch.used]
    return printed(
        sketch.head(), [f"def program({names}):", *indented(sketch.body)], [*made, f"return program, ({names},)"]
    )


def as_module(sketch: Sketch, held: Sequence[str]) -> str:
    """`class Program`, which holds some of the inputs: those that want a gradient as parameters, others as buffers."""
    names = ", ".join(name for name in sketch.used if name not in held)
    holding = []
    for name in held:
        text = sketch.inputs[name]
        wants = text.endswith(GRADIENT)
        parameter = f"self.{name} = torch.nn.Parameter({text.removesuffix(GRADIENT)})"
        holding.append(parameter if wants else f"self.register_buffer({name!r}, {text})")
    body = sketch.body
    for name in held:
        body = [re.sub(rf"(?<![\w.]){name}\b", f"self.{name}", line) for line in body]
    lines = ["class Program(torch.nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [*indented(indented(holding)), "", f"    def forward(self, {names}):", *indented(indented(body))]
    made = [f"{name} = {sketch.inputs[name]}" for name in sketch.used if name not in held]
    return printed(sketch.head(), lines, [*made, f"return Program(), ({names},)"])


def as_calls(sketch: Sketch, changes: Sequence[Mapping[str, str]]) -> str:
    """`def program(a, b)`, called with its inputs, and again with what is made of them."""
    names = sketch.used
    made = [f"{name} = {sketch.inputs[name]}" for name in names]
    calls = [f"({', '.join(names)},)"]
    for change in changes:
        again = [again_text(sketch.inputs[name], change.get(name, "{name}").format(name=name)) for name in names]
        calls.append(f"({', '.join(again)},)")
    last = f"return torchparity.Subject(program, input_sets=[{', '.join(calls)}])"
    lines = [f"def program({', '.join(names)}):", *indented(sketch.body)]
    return printed(sketch.head("import torchparity"), lines, [*made, last])


def again_text(first: str, text: str) -> str:
    """Return an input of a later call: memory of its own, a gradient where the first had one."""
    return f"{text}.detach().clone(){GRADIENT if first.endswith(GRADIENT) else ''}"


def printed(head: Iterable[str], program: Iterable[str], factory: Iterable[str]) -> str:
    """Return a file: what it imports, the program, the factory."""
    return "\n".join([*head, *program, "", "", "def make():", *indented(factory), ""])


def indented(lines: Iterable[str]) -> list[str]:
    """Return lines, further to the right."""
    return [f"    {line}" if line else "" for line in lines]


def mentions(text: str, name: str) -> bool:
    """Tell whether a text reads a name."""
    return re.search(rf"(?<![\w.]){name}\b", text) is not None
