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
LONGEST = 128
PROGRAMS = 4096
# Parts that are added up at once, and of how many sums.
DEEP, WIDE = 16, 64


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

    def parts(self, down: int, across: int) -> tuple[tuple[int, torch.dtype], tuple[int, torch.dtype]]:
        """Return what the programs leave of some sums over rows and of some over columns: how many numbers of what."""
        return (down * self.strips * self.rows, torch.float32), (across * self.levels * self.columns, torch.float32)

    def sums(self, down: int, across: int) -> tuple[int, torch.dtype]:
        """Return what these are added up to, and one number more."""
        return down * self.rows + across * self.columns + 1, torch.float64


@dataclass(frozen=True)
class Whole:
    """Sums over rows and over columns, a line for each thing that was summed, in float64 and one after the other.

    One number more lies behind them, for whoever makes something of them.
    """

    cut: Cut
    down: int
    across: int
    held: torch.Tensor

    @property
    def flat(self) -> torch.Tensor:
        """All of them."""
        return self.held[:-1]

    @property
    def spare(self) -> torch.Tensor:
        """The number behind them."""
        return self.held[-1]

    @property
    def row(self) -> torch.Tensor:
        """A line for each sum over rows."""
        return self.held[: self.down * self.cut.rows].view(self.down, self.cut.rows)

    @property
    def column(self) -> torch.Tensor:
        """A line for each sum over columns."""
        return self.held[self.down * self.cut.rows : -1].view(self.across, self.cut.columns)

    def add_up(self, row_parts: torch.Tensor, column_parts: torch.Tensor) -> Whole:
        """Add up what the programs have left."""
        cut, blocks = self.cut, (math.ceil(self.cut.rows / WIDE), math.ceil(self.cut.columns / WIDE))
        whole_kernel[(self.down * blocks[0] + self.across * blocks[1],)](
            row_parts, column_parts, self.held, cut.strips, cut.levels, cut.rows, cut.columns, self.down, *blocks,
            DEEP=DEEP, WIDE=WIDE,
        )  # fmt: skip
        return self


@triton.jit
def add_up_some(parts, sums, number, count, size, blocks, DEEP: tl.constexpr, WIDE: tl.constexpr):
    """Add up the parts of some sums in float64."""
    line = (number // blocks).to(tl.int64)
    across = (number % blocks).to(tl.int64) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((DEEP, WIDE), tl.float64)
    for first in range(0, count, DEEP):
        down = first + tl.arange(0, DEEP)
        inside = (down[:, None] < count) & (across[None, :] < size)
        place = (line * count + down[:, None]) * size + across[None, :]
        total += tl.load(parts + place, inside, other=0.0).to(tl.float64)
    tl.store(sums + line * size + across, tl.sum(total, 0), across < size)


@triton.jit
def whole_kernel(
    row_parts, column_parts, sums, strips, levels, rows, columns, down, row_blocks, column_blocks,
    DEEP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add up the parts of all sums over rows, and behind them of all over columns."""
    number = tl.program_id(0)
    if number < down * row_blocks:
        add_up_some(row_parts, sums, number, strips, rows, row_blocks, DEEP, WIDE)
    else:
        behind = sums + tl.cast(rows, tl.int64) * down
        add_up_some(column_parts, behind, number - down * row_blocks, levels, columns, column_blocks, DEEP, WIDE)


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
