"""Inputs of generated programs: small whole numbers, of every dtype and layout, some empty or views of another."""

from __future__ import annotations

import math
import random

DTYPES = ("float32", "float32", "float32", "float64", "bfloat16", "float16", "int64", "int64", "int32", "int16", "int8",
          "uint8", "bool")  # fmt: skip
SIZES = (1, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17, 20, 33)
MOST_ELEMENTS = 1024
# Values that are asked for by themselves.
SPECIAL = ("float('inf')", "float('-inf')", "float('nan')", "-0.0", "0.0", "65504.0", "3e38", "-3e38", "1e-40", "1e-45",
           "1.1754944e-38", "0.5", "-0.5", "2.5", "1e4")  # fmt: skip
# Layouts of a tensor with enough dimensions: the expression for sizes that were changed to fit, and how.
LAYOUTS = ("plain", "plain", "plain", "plain", "transposed", "stepped", "shifted", "expanded", "channels last")


def drawn_input(chance: random.Random, others: list[str], *, special: bool = False) -> str:
    """Return an expression for one input."""
    if others and chance.random() < 0.06:
        return f"{chance.choice(others)}.detach()[{chance.choice(('1:', '::2', '...', ':1'))}]"
    shape = drawn_shape(chance)
    dtype = chance.choice(DTYPES)
    layout = chance.choice(LAYOUTS)
    if special and dtype.startswith(("float", "bfloat")) and chance.random() < 0.7:
        text = unusual(shape, dtype, chance)
    else:
        text = laid_out(shape, dtype, layout, chance)
    if dtype.startswith(("float", "bfloat")) and chance.random() < 0.35:
        text += ".requires_grad_()"
    return text


def unusual(shape: list[int], dtype: str, chance: random.Random) -> str:
    """Return an expression for a tensor with values that programs seldom see."""
    chosen = ", ".join([*chance.sample(SPECIAL, 3), "1.0", "-2.0"])
    numbers = f"torch.tensor([{chosen}])[torch.arange({math.prod(shape)}) % 5]"
    return f"{numbers}.view({', '.join(map(str, shape)) or '()'}).to(torch.{dtype})"


def drawn_shape(chance: random.Random) -> list[int]:
    """Return sizes: of none to four dimensions, seldom with a zero."""
    dimensions = chance.choices((0, 1, 2, 3, 4), (5, 22, 38, 20, 15))[0]
    shape = [chance.choice(SIZES) for _ in range(dimensions)]
    while math.prod(shape) > MOST_ELEMENTS:
        place = max(range(len(shape)), key=lambda number: shape[number])
        shape[place] = max(1, shape[place] // 2)
    if shape and chance.random() < 0.04:
        shape[chance.randrange(len(shape))] = 0
    return shape


def laid_out(
    shape: list[int], dtype: str, layout: str, chance: random.Random, span: tuple[int, int] | None = None
) -> str:
    """Return an expression of the sizes, dtype and layout that are wanted."""
    if layout == "transposed" and len(shape) >= 2:
        swapped = [*shape[:-2], shape[-1], shape[-2]]
        return f"{filled(swapped, dtype, chance, span)}.mT"
    if layout == "stepped" and shape:
        return f"{filled([*shape[:-1], shape[-1] * 2], dtype, chance, span)}[..., ::2]"
    if layout == "shifted" and shape:
        return f"{filled([shape[0] + 1, *shape[1:]], dtype, chance, span)}[1:]"
    if layout == "expanded" and shape:
        return f"{filled([1, *shape[1:]], dtype, chance, span)}.expand({', '.join(map(str, shape))})"
    if layout == "channels last" and len(shape) == 4:
        return f"{filled(shape, dtype, chance, span)}.to(memory_format=torch.channels_last)"
    return filled(shape, dtype, chance, span)


def filled(shape: list[int], dtype: str, chance: random.Random, span: tuple[int, int] | None = None) -> str:
    """Return an expression for a dense tensor of small whole numbers: those of a span where one is given."""
    count = math.prod(shape)
    sizes = ", ".join(map(str, shape))
    if dtype == "bool":
        return f"(torch.arange({count}) % {chance.choice((2, 3))} == 0).view({sizes or '()'})"
    if span is not None:
        low, width = span[0], span[1] - span[0] + 1
        numbers = f"torch.arange({count}) * {chance.choice((7, 5, 3, 1))} % {width} + {low}".replace("+ -", "- ")
        return f"({numbers}).view({sizes or '()'}).to(torch.{dtype})"
    factor, modulus = chance.choice(((7, 9), (5, 11), (3, 8), (1, 5)))
    # Around zero, and of one sign: with a zero, and without it, lest what starts at zero looks right.
    lows = (0, 1) if dtype == "uint8" else (0, 1, -(modulus // 2), -modulus)
    low = chance.choice(lows)
    numbers = f"torch.arange({count}) * {factor} % {modulus}"
    numbers += f" {'-' if low < 0 else '+'} {abs(low)}" if low else ""
    return f"({numbers}).view({sizes or '()'}).to(torch.{dtype})"
