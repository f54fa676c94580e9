"""What a program may begin with beside lines of the grammar: an operator of PyTorch's database, a stretch of a model.

An opening is some lines with the inputs that they take. Each time one is used its inputs are varied: other sizes,
dtypes, layouts. Eager says whether that still makes sense.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from torchparity.hunting.inputs import LAYOUTS, filled, laid_out

FILE = "openings.jsonl"
FLOATS = ("float32", "float64", "bfloat16", "float16")
WHOLES = ("int64", "int32", "int16", "int8", "uint8")
# What a size is made instead, beside its neighbours and its double.
SIZES = (1, 2, 3, 7, 8, 16, 17, 33)
# Whole numbers in the place of floats: of both signs, small ones, none below zero, none below one.
SPANS = ((-4, 4), (-1, 1), (0, 4), (1, 5))


@dataclass(frozen=True, kw_only=True)
class Given:
    """An input of an opening: what it looks like, the least and the greatest number in it."""

    shape: tuple[int, ...]
    dtype: str
    low: int = -4
    high: int = 4
    order: tuple[int, ...] = ()
    gradient: bool = False


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Lines that a program begins with, the inputs that they take, and what they import."""

    name: str
    inputs: dict[str, Given]
    lines: tuple[str, ...]
    imports: tuple[str, ...] = ()


def write_openings(place: Path, openings: Iterable[Opening]) -> int:
    """Write openings to a file, whole or not at all; return how many there are."""
    lines = [json.dumps(asdict(opening)) for opening in openings]
    half = place.with_suffix(".part")
    half.write_text("\n".join(lines) + "\n", encoding="utf-8")
    half.replace(place)
    return len(lines)


@lru_cache(maxsize=2)
def read_openings(place: Path) -> tuple[Opening, ...]:
    """Return the openings of a file; none where there is no file."""
    if not place.is_file():
        return ()
    found = []
    for line in place.read_text(encoding="utf-8").splitlines():
        facts = json.loads(line) if line.strip() else None
        if facts is not None:
            inputs = {name: given_from(given) for name, given in facts["inputs"].items()}
            lines, imports = tuple(facts["lines"]), tuple(facts["imports"])
            found.append(Opening(name=facts["name"], inputs=inputs, lines=lines, imports=imports))
    return tuple(found)


def given_from(facts: dict[str, object]) -> Given:
    """Read an input as it is written."""
    return Given(**{name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()})  # type: ignore[arg-type]


def varied(opening: Opening, chance: random.Random, boldness: float) -> tuple[dict[str, str], list[str]]:
    """Return an opening's inputs as expressions, and its lines, with something changed; the bolder the more."""
    dtypes = {}
    if chance.random() < 0.6 * boldness:
        dtypes = {name: chance.choice(FLOATS) for name in FLOATS}
    if chance.random() < 0.25 * boldness:
        dtypes |= {name: chance.choice(WHOLES) for name in WHOLES}
    sizes, lines = other_sizes(opening, chance) if chance.random() < 0.6 * boldness else ({}, list(opening.lines))
    inputs = {}
    for name, given in opening.inputs.items():
        shape = [sizes.get(size, size) for size in given.shape]
        inputs[name] = written(given, shape, dtypes.get(given.dtype, given.dtype), chance, boldness)
    return inputs, lines


def other_sizes(opening: Opening, chance: random.Random) -> tuple[dict[int, int], list[str]]:
    """Return another number for one of the sizes, and the lines with it in the place of that number."""
    present = sorted({size for given in opening.inputs.values() for size in given.shape if size > 1})
    if not present:
        return {}, list(opening.lines)
    old = chance.choice(present)
    new = chance.choice([size for size in (*SIZES, old - 1, old + 1, 2 * old) if size != old])
    if chance.random() < 0.3:
        return {old: new}, list(opening.lines)
    return {old: new}, [re.sub(rf"(?<![\w.]){old}(?![\w.])", str(new), line) for line in opening.lines]


def written(given: Given, shape: Sequence[int], dtype: str, chance: random.Random, boldness: float) -> str:
    """Return an expression for an input: laid out as it was, or in another way."""
    floats = dtype in FLOATS
    span = chance.choice([span for span in SPANS if given.low < 0 or span[0] >= 0]) if floats else None
    if not floats and dtype != "bool" and not dtype.startswith("complex"):
        span = (max(given.low, 0) if dtype == "uint8" else given.low, max(given.high, 0))
    if chance.random() < 0.3 * boldness:
        text = laid_out(list(shape), dtype, chance.choice(LAYOUTS), chance, span)
    else:
        order = given.order if len(given.order) == len(shape) else ()
        text = filled([shape[place] for place in order] or list(shape), dtype, chance, span)
        text += f".permute({', '.join(str(order.index(place)) for place in range(len(order)))})" if order else ""
    wants = chance.random() < (0.7 if given.gradient else 0.25)
    return f"{text}.requires_grad_()" if floats and wants else text
