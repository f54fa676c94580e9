"""Programs, drawn line by line. Each line runs in eager as it is drawn, so shapes, dtypes and aliases are known.

A program is a readable file: the function `program`, and `make`, which returns it with its inputs.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchparity.hunting.inputs import drawn_input
from torchparity.hunting.templates import TEMPLATES, Template

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
LINES = (2, 9)
TRIES = 12
MOST_ELEMENTS = 4096
LARGEST = {True: 1.0e4, False: 2.0**24}
HOLE = re.compile(r"\{(\w+?)(0?)\}")
RESULT = "r"
GRADIENT = ".requires_grad_()"
WRITES = "write"
RANGES = {torch.uint8: (0, 255), torch.int8: (-128, 127), torch.int16: (-32768, 32767)}
# What a program is compiled with beside the defaults, and how often of a hundred.
VARIANTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (70, {}),
    (14, {"dynamic": True}),
    (4, {"config": {"inductor.epilogue_fusion": False}}),
    (4, {"config": {"inductor.implicit_fallbacks": True, "inductor.max_fusion_size": 1}}),
    (4, {"config": {"inductor.cpp.simdlen": 1}}),
    (4, {"no_grad": True}),
)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program as text, how it is to be compiled, and what it is made of."""

    text: str
    options: Mapping[str, Any]
    features: tuple[str, ...]


@dataclass
class Scope:
    """The values that a program has so far, and the lines that made them."""

    inputs: dict[str, str]
    lines: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    namespace: dict[str, Any] = field(default_factory=dict)

    def run_again(self) -> None:
        """Run everything from the start."""
        self.namespace = {"torch": torch, "seen": [], "state": {}}
        for name, text in self.inputs.items():
            exec(f"{name} = {text}", self.namespace)
        for line in self.lines:
            exec(line, self.namespace)
        self.refresh()

    def refresh(self) -> None:
        """Look up the tensors that there are now."""
        self.values = {name: value for name, value in self.namespace.items() if isinstance(value, torch.Tensor)}


class Undefined(Exception):
    """A line whose result eager does not define, or that is of no use here."""


class Writer:
    """Draws one program. What is rare, by the counts that it is given, is drawn more often."""

    def __init__(self, seed: int, counts: Mapping[str, int] | None = None) -> None:
        self.random = random.Random(seed)
        self.counts = Counter(counts or {})
        self.left_out: Counter[str] = Counter()
        self.features: list[str] = []
        self._chosen: dict[str, str] = {}

    def write(self) -> Program:
        """Return a program."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Eager may deprecate a form, and compilers must still take it.
            return self._written()

    def _written(self) -> Program:
        torch.manual_seed(0)
        names = "abcd"[: self.random.choice((1, 1, 2, 2, 3))]
        scope = Scope(inputs={})
        for name in names:
            scope.inputs[name] = drawn_input(self.random, [name for name, value in scope.values.items() if value.dim()])
            scope.run_again()
        for _ in range(self.random.randint(*LINES)):
            self._add_line(scope)
        text = self._printed(scope)
        if GRADIENT in text and not differentiable(text):
            self.left_out["no gradient"] += 1
            text = text.replace(GRADIENT, "")
        return Program(text=text, options=self._options(), features=tuple(self.features))

    def _options(self) -> dict[str, Any]:
        weights = [share for share, _ in VARIANTS]
        return dict(self.random.choices([options for _, options in VARIANTS], weights)[0])

    # --- lines -----------------------------------------------------------------------------------

    def _add_line(self, scope: Scope) -> None:
        for _ in range(TRIES):
            template = self._template()
            try:
                line = self._filled(template, scope)
                self._adopt(scope, line, template)
            except Undefined as reason:
                self.left_out[str(reason)] += 1
                scope.run_again()
                continue
            self.features.append(template.name)
            return

    def _template(self) -> Template:
        table = self.random.choices(
            ("view", "pointwise", "reduction", "indexing", "write", "layer", "python"), (18, 26, 17, 12, 16, 15, 2)
        )[0]
        forms = [template for template in TEMPLATES if template.table == table]
        return self.random.choices(forms, [1.0 / (1 + self.counts[form.name]) ** 0.5 for form in forms])[0]

    def _filled(self, template: Template, scope: Scope) -> str:
        self._chosen = {}
        text = HOLE.sub(lambda found: self._fill(found[1], bool(found[2]), scope, template), template.text)
        if template.table in (WRITES, "python"):
            return self._in_control_flow(text) if template.table == WRITES else text
        name = f"{RESULT}{len(scope.lines)}"
        if self.random.random() < 0.04:
            condition = f"{self._value(scope, lambda value: value.numel() > 0)}.sum() > {self._small()}"
            return f"{name} = ({text}) if {condition} else {self._value(scope, lambda value: True)}"
        return f"{name} = {text}"

    def _in_control_flow(self, text: str) -> str:
        chance = self.random.random()
        return f"for _ in range(2): {text}" if chance < 0.05 and "=" not in text else text

    def _adopt(self, scope: Scope, line: str, template: Template) -> None:
        before = {name: value for name, value in scope.values.items() if re.search(rf"\b{name}\b", line)}
        try:
            exec(line, scope.namespace)
        except Exception as error:
            raise Undefined("refused") from error
        made = line.partition(" = ")[0]
        result = scope.namespace.get(made) if template.table not in (WRITES, "python") else None
        if isinstance(result, tuple | list):
            result = next((part for part in result if isinstance(part, torch.Tensor)), None)
            line = f"{line}[0]"
            scope.namespace[made] = result
            if not isinstance(result, torch.Tensor):
                raise Undefined("refused")
        scope.lines.append(line)
        scope.refresh()
        try:
            for value in [result] if result is not None else list(scope.values.values()):
                refuse_useless(value, before)
        except Undefined:
            scope.lines.pop()
            raise

    # --- holes -----------------------------------------------------------------------------------

    def _fill(self, hole: str, again: bool, scope: Scope, template: Template) -> str:
        if again:
            return self._chosen[hole]
        wanted = KINDS.get(hole)
        if wanted is not None:
            name = self._value(scope, wanted)
        elif hole == "y":
            name = self._partner(scope, template)
        else:
            name = NUMBERS[hole](self)
        self._chosen.setdefault(hole, name)
        if wanted is not None and "first" not in self._chosen:
            self._chosen["first"] = name
            self._first: torch.Tensor = scope.values[name]
        return name

    def _value(self, scope: Scope, wanted: Callable[[torch.Tensor], bool]) -> str:
        names = [name for name, value in scope.values.items() if wanted(value)]
        if not names:
            raise Undefined("refused")
        # What was made last is taken most: a program is a chain more than a heap.
        return self.random.choices(names, [1 + place for place in range(len(names))])[0]

    def _partner(self, scope: Scope, template: Template) -> str:
        """A tensor that goes with the first one by broadcasting; for a write, one that shares no memory with it."""
        first = self._first

        def fits(value: torch.Tensor) -> bool:
            try:
                shape = torch.broadcast_shapes(first.shape, value.shape)
            except RuntimeError:
                return False
            if template.table != WRITES:
                return True
            return shape == first.shape and storage(value) != storage(first)

        return self._value(scope, fits)

    def _dimension(self) -> str:
        count = max(1, self._first.dim())
        place = self.random.randrange(count)
        return str(place - count if self.random.random() < 0.3 else place)

    def _small(self) -> str:
        return str(self.random.choice((-2, -1, 0, 1, 1, 2, 3)))

    def _slice(self) -> str:
        start = self.random.choice(("", "", "1", "-2", "2"))
        stop = self.random.choice(("", "", "-1", "3"))
        step = self.random.choice(("", "", "::2", "::3"))
        return f"{start}{step}" if step else f"{start}:{stop}"

    def _index(self) -> str:
        size = min(self._first.shape, default=0)
        if not size:
            raise Undefined("refused")
        chosen = self.random.sample(range(size), min(size, self.random.randint(1, 3)))
        return f"torch.tensor({chosen})"

    def _shape(self) -> str:
        sizes = [self.random.choice((1, 2, 3, 4, 5)) for _ in range(self.random.choice((0, 1, 1, 2, 2)))]
        return repr(tuple(sizes))

    def _strides(self) -> str:
        count = self._chosen.get("shape", "()").count(",") + (not self._chosen.get("shape", "()").endswith(",)"))
        if self._chosen.get("shape") == "()":
            return "()"
        return repr(tuple(self.random.choice((1, 2, 3, 5)) for _ in range(count)))

    def _order(self) -> str:
        places = list(range(self._first.dim()))
        self.random.shuffle(places)
        return repr(tuple(places))

    def _reshaped(self) -> str:
        divisors = [number for number in (2, 3, 4) if self._first.numel() % number == 0]
        return f"({self.random.choice(divisors or [1])}, -1)" if self._first.numel() else "(0, -1, 1)"

    def _scalar(self) -> str:
        return self.random.choice(("2", "-1", "3", "0.5", "1.5", "-2.0", "True", "1", "7"))

    def _position(self) -> str:
        return str(self.random.choice((0, 0, -1, 1)))

    def _dtype(self) -> str:
        return f"torch.{self.random.choice(DTYPES)}"

    # --- the text --------------------------------------------------------------------------------

    def _printed(self, scope: Scope) -> str:
        returned = self._returned(scope)
        body = "\n".join(f"    {line}" for line in [*scope.lines, f"return {returned}"])
        used = [name for name in scope.inputs if re.search(rf"\b{name}\b", body)] or list(scope.inputs)[:1]
        for name in reversed(scope.inputs):  # An input may be a view of another one.
            if any(re.search(rf"\b{name}\b", scope.inputs[other]) for other in used) and name not in used:
                used.insert(0, name)
        made = "\n".join(f"    {name} = {scope.inputs[name]}" for name in scope.inputs if name in used)
        names = ", ".join(name for name in scope.inputs if name in used)
        outside = [f"{name} = {empty}" for name, empty in (("seen", "[]"), ("state", "{}")) if name in body]
        head = "\n".join(["import torch", "", *outside, *([""] if outside else [])])
        return f"{head}\ndef program({names}):\n{body}\n\n\ndef make():\n{made}\n    return program, ({names},)\n"

    def _returned(self, scope: Scope) -> str:
        made = [name for name in scope.values if name not in scope.inputs]
        chosen = made[-1:] + [name for name in made[:-1] if self.random.random() < 0.4]
        chosen += [name for name in scope.inputs if self.random.random() < 0.05]
        if self.random.random() < 0.05 and made:
            chosen.append(f"{made[-1]}.shape")
        return ", ".join(chosen or list(scope.inputs)[:1])


KINDS: dict[str, Callable[[torch.Tensor], bool]] = {
    "x": lambda value: not value.is_complex(),
    "n": lambda value: value.dtype is not torch.bool and not value.is_complex(),
    "f": lambda value: value.is_floating_point(),
    "i": lambda value: not value.is_floating_point() and value.dtype is not torch.bool and not value.is_complex(),
    "b": lambda value: value.dtype is torch.bool,
    "m": lambda value: value.is_floating_point() and value.dim() == 2,
    "v": lambda value: value.is_floating_point() and value.dim() == 4,
    "w": lambda value: not value.is_complex() and not shares_elements(value),
}
NUMBERS: dict[str, Callable[[Writer], str]] = {
    "dim": Writer._dimension,
    "size": Writer._position,
    "k": Writer._small,
    "p": lambda writer: str(writer.random.choice((1, 1, 2, 2, 3, 4))),
    "s": Writer._scalar,
    "dtype": Writer._dtype,
    "flag": lambda writer: writer.random.choice(("True", "False")),
    "slice": Writer._slice,
    "index": Writer._index,
    "shape": Writer._shape,
    "strides": Writer._strides,
    "order": Writer._order,
    "reshape": Writer._reshaped,
}


def differentiable(text: str) -> bool:
    """Tell whether eager can go backwards through a program."""
    namespace: dict[str, Any] = {}
    try:
        exec(text, namespace)
        function, inputs = namespace["make"]()
        found = function(*inputs)
        results = found if isinstance(found, tuple) else (found,)
        floats = [part for part in results if isinstance(part, torch.Tensor) and part.requires_grad]
        if floats:
            torch.autograd.backward([part.sum() for part in floats])
    except Exception:  # noqa: BLE001 - whatever eager has against it
        return False
    return True


def storage(value: torch.Tensor) -> int:
    """Return what tells a tensor's memory from another's."""
    return value.untyped_storage().data_ptr()


def shares_elements(value: torch.Tensor) -> bool:
    """Tell whether two elements of a tensor lie at one place."""
    places = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(value.shape, value.stride(), strict=True):
        places = (places[:, None] + torch.arange(size)[None] * stride).reshape(-1)
    return bool(places.unique().numel() != places.numel())


def refuse_useless(value: torch.Tensor, operands: Mapping[str, torch.Tensor]) -> None:
    """Raise for what eager does not define, or what is too large to stay exact."""
    if value.numel() > MOST_ELEMENTS or value.dim() > 6:
        raise Undefined("too large")
    if value.numel() == 0 or value.dtype is torch.bool:
        return
    plain = value.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    if plain.is_floating_point() and not bool(torch.isfinite(plain).all()):
        raise Undefined("not finite")
    if float(plain.double().abs().max()) > LARGEST[plain.is_floating_point()]:
        raise Undefined("too large")
    if value.dtype in RANGES:
        low, high = RANGES[value.dtype]
        floats = [operand for operand in operands.values() if operand.is_floating_point() and operand.numel()]
        if any(float(operand.min()) < low or float(operand.max()) > high for operand in floats):
            raise Undefined("out of range")
