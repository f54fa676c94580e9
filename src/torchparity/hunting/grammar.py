"""Programs, drawn line by line. Each line runs in eager as it is drawn, so shapes, dtypes and aliases are known.

A program is a readable file: the function `program`, and `make`, which returns it with its inputs.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchparity.hunting.forms import CHANGES, GRADIENT, Sketch, as_calls, as_function, as_module
from torchparity.hunting.inputs import drawn_input
from torchparity.hunting.openings import Opening, varied
from torchparity.hunting.scope import (
    MOST_ELEMENTS,
    Scope,
    Undefined,
    refuse_unwritten,
    refuse_useless,
    runs,
    shares_elements,
    storage,
)
from torchparity.hunting.templates import PAIR, TEMPLATES, Template

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
LINES = (2, 9)
# How many lines come after an opening.
FURTHER = (0, 3)
TRIES = 12
# Values of a stretch of a model may be as large as this.
MOST_OF_A_MODEL = 1 << 18
HOLE = re.compile(r"\{(\w+?)(0?)\}")
RESULT = "r"
WRITES = "write"
# How many of a hundred and ten lines come from each table.
SHARES = {
    "view": 18, "pointwise": 24, "constant": 6, "reduction": 17, "indexing": 12, "write": 16, "layer": 15, "python": 2,
}  # fmt: skip
# How many of a hundred programs are a module that holds some of its inputs, and how many are called several times.
MODULES, CALLS = 10, 8
# What a program is compiled with beside the defaults, and how often of a hundred.
VARIANTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (68, {}),
    (14, {"dynamic": True}),
    (2, {"mode": "max-autotune-no-cudagraphs"}),
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


class Writer:
    """Draws one program. What is rare, by the counts that it is given, is drawn more often.

    `liked` says which forms are wanted beyond that. `openings` are what a share of the programs begins with; `special`
    puts Inf, NaN, -0.0 and extremes into inputs.
    """

    def __init__(
        self,
        seed: int,
        counts: Mapping[str, int] | None = None,
        *,
        liked: Mapping[str, float] | None = None,
        openings: Sequence[Opening] = (),
        share: float = 0.0,
        special: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.counts = Counter(counts or {})
        self.liked = liked or {}
        self.openings, self.share, self.special = openings, share, special
        self.left_out: Counter[str] = Counter()
        self.features: list[str] = []
        self._chosen: dict[str, str] = {}
        self._most = MOST_ELEMENTS

    def write(self) -> Program:
        """Return a program."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Eager may deprecate a form, and compilers must still take it.
            return self._written()

    def _written(self) -> Program:
        torch.manual_seed(0)
        scope = self._opened() if self.openings and self.random.random() < self.share else None
        lines = FURTHER if scope is not None else LINES
        scope = scope or self._with_inputs()
        for _ in range(self.random.randint(*lines)):
            self._add_line(scope)
        return Program(text=self._text(scope), options=self._options(), features=tuple(self.features))

    def _with_inputs(self) -> Scope:
        """Return a scope with inputs that were drawn."""
        scope = Scope()
        for name in "abcd"[: self.random.choice((1, 1, 2, 2, 3))]:
            others = [name for name, value in scope.values.items() if value.dim()]
            scope.inputs[name] = drawn_input(self.random, others, special=self.special)
            scope.run_again()
        return scope

    def _opened(self) -> Scope | None:
        """Return a scope with an opening, varied so that eager still takes it; None where it takes none."""
        weights = [self._weight(opening.name) for opening in self.openings]
        for attempt in range(TRIES):
            opening = self.random.choices(self.openings, weights)[0]
            inputs, lines = varied(opening, self.random, boldness=1 - attempt / TRIES)
            scope = Scope(inputs=inputs, lines=lines, imports=opening.imports)
            try:
                scope.run_again()
                given = {name: scope.values[name] for name in inputs if name in scope.values}
                for name, value in scope.values.items():
                    if name not in given:
                        refuse_useless(value, given, most=MOST_OF_A_MODEL)
            except Undefined as reason:
                self.left_out[str(reason)] += 1
            except Exception:  # noqa: BLE001 - whatever eager has against it
                self.left_out["refused"] += 1
            else:
                self.features.append(opening.name)
                self._most = MOST_OF_A_MODEL
                return scope
        return None

    def _options(self) -> dict[str, Any]:
        weights = [share for share, _ in VARIANTS]
        return dict(self.random.choices([options for _, options in VARIANTS], weights)[0])

    # --- lines -----------------------------------------------------------------------------------

    def _add_line(self, scope: Scope) -> None:
        for _ in range(TRIES):
            try:
                # Of two lines the one whose operation is rarer with operands of its dtype.
                drawn = [self._drawn(scope) for _ in range(2)]
                line, template, pair = min(drawn, key=lambda entry: self.counts[entry[2]])
                self._adopt(scope, line, template)
            except Undefined as reason:
                self.left_out[str(reason)] += 1
                scope.run_again()
                continue
            self.features += [template.name, pair]
            return

    def _drawn(self, scope: Scope) -> tuple[str, Template, str]:
        """Return a line, its template, and what tells its operation and the dtype of its first operand."""
        template = self._template()
        line = self._filled(template, scope)
        first = self._chosen.get("first")
        dtype = str(scope.values[first].dtype).removeprefix("torch.") if first is not None else ""
        return line, template, f"{PAIR}{template.name}/{dtype}"

    def _template(self) -> Template:
        table = self.random.choices(list(SHARES), list(SHARES.values()))[0]
        forms = [template for template in TEMPLATES if template.table == table]
        return self.random.choices(forms, [self._weight(form.name) for form in forms])[0]

    def _weight(self, name: str) -> float:
        """Return how much a form is wanted: what is rare, and what makes rare parts of the compiler fire."""
        return float((1.0 + self.liked.get(name, 0.0)) / (1 + self.counts[name]) ** 0.5)

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
                refuse_useless(value, before, special=self.special, most=self._most)
            if result is not None:
                inputs = [scope.values[name] for name in scope.inputs if name in scope.values]
                refuse_unwritten(result, inputs, [other for other in scope.values.values() if other is not result])
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
        return self.random.choice(("2", "-1", "3", "0.5", "1.5", "-2.0", "True", "1", "7", "0.1", "-0.3"))

    def _position(self) -> str:
        return str(self.random.choice((0, 0, -1, 1)))

    def _dtype(self) -> str:
        return f"torch.{self.random.choice(DTYPES)}"

    # --- the text --------------------------------------------------------------------------------

    def _text(self, scope: Scope) -> str:
        """Return a program's text: in one of the rarer forms where eager takes it, with gradients where it can."""
        returned = self._returned(scope)
        sketch = Sketch(inputs=scope.inputs, lines=scope.lines, returned=returned, imports=scope.imports)
        plain, (form, text) = as_function(sketch), self._in_a_form(sketch)
        if form and runs(text, backward=GRADIENT in text or "Parameter" in text):
            self.features.append(form)
            return text
        if GRADIENT not in plain or runs(plain, backward=True):
            return plain
        self.left_out["no gradient"] += 1
        return plain.replace(GRADIENT, "")

    def _in_a_form(self, sketch: Sketch) -> tuple[str, str]:
        """Return a form that is drawn, and the text in it: a module with state, several calls; mostly none."""
        chance = self.random.random() * 100
        free = sketch.independent
        if chance < MODULES and len(sketch.used) > 1 and free:
            held = self.random.sample(free, min(len(sketch.used) - 1, self.random.choice((1, 1, 2)), len(free)))
            return "form:module", as_module(sketch, [name for name in sketch.used if name in held])
        if MODULES <= chance < MODULES + CALLS and free:
            changes = [self._change(free) for _ in range(self.random.choice((1, 1, 2)))]
            return "form:calls", as_calls(sketch, changes)
        return "", ""

    def _change(self, names: Sequence[str]) -> dict[str, str]:
        """Return what the inputs of another call are made of: all of them changed in one way, or one of them."""
        change = self.random.choice(CHANGES)
        chosen = names if self.random.random() < 0.6 else [self.random.choice(names)]
        return dict.fromkeys(chosen, change)

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
