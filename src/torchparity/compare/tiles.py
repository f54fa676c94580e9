"""How a leaf on a GPU is cut into tiles, and how the sums that programs leave in parts are put together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

# One warp has a tile, so that sums over a row are its own.
WARPS = 1
# Tiles that one program goes down, so that sums over columns leave its registers once; and how many programs there
# should be at least, so that every core has several.
LONGEST = 64
PROGRAMS = 4096
# Parts that are added up at once, and of how many sums.
DEEP, WIDE = 16, 64
# From so many parts on, a kernel of their own is worth its launch.
MANY = 1 << 20


@dataclass(frozen=True)
class Cut:
    """How a matrix is cut into tiles."""

    rows: int
    columns: int
    height: int
    width: int
    loops: int

    @classmethod
    def of(cls, matrix: torch.Tensor, tile: int) -> Cut:
        """Cut a matrix so that tiles are wide, and programs neither few nor short."""
        rows, columns = matrix.shape
        width = min(tile, triton.next_power_of_2(max(1, columns)))
        height = tile // width
        tiles = math.ceil(columns / width) * math.ceil(rows / height)
        return cls(rows, columns, height, width, min(LONGEST, max(1, tiles // PROGRAMS)))

    @property
    def strips(self) -> int:
        """How many programs there are across."""
        return math.ceil(self.columns / self.width)

    @property
    def levels(self) -> int:
        """How many programs there are down."""
        return math.ceil(self.rows / (self.height * self.loops))

    @property
    def programs(self) -> int:
        """How many programs there are; a device counts far in one dimension only."""
        return self.strips * self.levels

    @property
    def shape(self) -> dict[str, int]:
        """The tile as the kernels want it."""
        return {"HEIGHT": self.height, "WIDTH": self.width, "num_warps": WARPS}

    def parts(self, down: int, across: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return room for some sums over rows and some over columns, in the parts that the programs give."""
        row = torch.empty(down, self.strips, self.rows, dtype=torch.float32, device=like.device)
        return row, torch.empty(across, self.levels, self.columns, dtype=torch.float32, device=like.device)


@triton.jit
def whole_kernel(parts, sums, count, size, blocks, DEEP: tl.constexpr, WIDE: tl.constexpr):
    """Add up the parts of some sums in float64."""
    number = (tl.program_id(0) // blocks).to(tl.int64)
    across = (tl.program_id(0) % blocks).to(tl.int64) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((DEEP, WIDE), tl.float64)
    for first in range(0, count, DEEP):
        down = first + tl.arange(0, DEEP)
        inside = (down[:, None] < count) & (across[None, :] < size)
        place = (number * count + down[:, None]) * size + across[None, :]
        total += tl.load(parts + place, inside, other=0.0).to(tl.float64)
    tl.store(sums + number * size + across, tl.sum(total, 0), across < size)


@dataclass(frozen=True)
class Whole:
    """Sums over rows and over columns, a line for each thing that was summed, in float64 and one after the other."""

    flat: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor


def whole(parts: tuple[torch.Tensor, torch.Tensor]) -> Whole:
    """Return sums from the parts that the programs have left."""
    (lines, _, rows), (others, _, columns) = (part.shape for part in parts)
    flat = torch.empty(lines * rows + others * columns, dtype=torch.float64, device=parts[0].device)
    row, column = flat[: lines * rows].view(lines, rows), flat[lines * rows :].view(others, columns)
    add_up(parts[0], row)
    add_up(parts[1], column)
    return Whole(flat, row, column)


def add_up(parts: torch.Tensor, sums: torch.Tensor) -> None:
    """Add up parts (torch's own sum makes a copy in float64 first: of many that takes longer)."""
    lines, count, size = parts.shape
    if parts.numel() < MANY:
        torch.sum(parts, 1, dtype=torch.float64, out=sums)
        return
    blocks = math.ceil(size / WIDE)
    whole_kernel[(lines * blocks,)](parts, sums, count, size, blocks, DEEP=DEEP, WIDE=WIDE)


@triton.jit
def keep_row(parts, number, strips, down, rows, values):
    """Write what the rows of a tile sum up to, as the `number`th of some sums."""
    start = (number * strips + tl.program_id(0) % strips).to(tl.int64) * rows
    tl.store(parts + start + down, tl.sum(values, 1), down < rows)


@triton.jit
def keep_column(parts, number, strips, across, columns, values):
    """Write what a program has summed of its columns, as the `number`th of some sums."""
    levels = tl.num_programs(0) // strips
    start = (number * levels + tl.program_id(0) // strips).to(tl.int64) * columns
    tl.store(parts + start + across, tl.sum(values, 0), across < columns)


@triton.jit
def keep_fact(facts, number, value):
    """Write one number that a program has found."""
    tl.store(facts + number * tl.num_programs(0) + tl.program_id(0), value)
