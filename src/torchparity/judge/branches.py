"""Where a model decides by a number what to run, and rounding decides the number, right runs take other branches.

`x if instance_norm(a).sum() else y`: the sum is zero but for roundings, and which ones there are is nobody's business.
A candidate that gives something else altogether, another shape even, is right where a right run gives that as well: one
in which float64 decides, or one whose roundings have moved.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from torchparity.compare.expectation import Expectation
from torchparity.compare.judgement import Tolerance
from torchparity.compare.leaves import Leaf
from torchparity.judge.ground import Ground, kept
from torchparity.judge.kinks import AMPLITUDE
from torchparity.judge.truths import truths_of
from torchparity.records import KINK, LeafReport, Status
from torchparity.run.reference import Reference

# Runs whose roundings have moved.
MOVED_RUNS = 2
# What leaves of the same branch may be off, as a share of their size, and by how much those of two branches differ.
ALIKE = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 3e-2}


class Branches:
    """Runs of the model that may have gone another way than eager did, for the leaves at which a candidate differs."""

    def __init__(self, ground: Ground, tolerance: Tolerance) -> None:
        self.ground, self.tolerance = ground, tolerance
        self.others: list[dict[str, Expectation]] = []

    @property
    def may_part(self) -> bool:
        """Whether the model looks at numbers of its tensors, and may decide by them."""
        reference = self.ground.reference
        return reference is not None and reference.reads > 0 and not reference.random_read

    def go(self, paths: set[str]) -> None:
        """Make the runs, and keep their leaves at these paths."""
        by_float64: dict[str, Expectation] = {}

        def hear(free: Reference, leaf: Leaf) -> None:
            if leaf.path in paths:
                truths = truths_of(free, leaf.made) if isinstance(leaf.value, torch.Tensor) else None
                by_float64[leaf.path] = Expectation(kept(leaf), truths)

        if self.ground.run_free(hear):
            self.others.append(by_float64)
        known = {path: self.ground.expectations[path] for path in paths if path in self.ground.expectations}
        for _ in range(MOVED_RUNS):
            moved: dict[str, Expectation] = {}

            def watch(leaf: Leaf, moved: dict[str, Expectation] = moved) -> None:
                moved[leaf.path] = Expectation(kept(leaf), None)

            if self.ground.run_noise(known, amplitude=AMPLITUDE, watch=watch, widen=False):
                self.others.append(moved)  # What a run that raises has not told is not missing in it.

    def explains(self, path: str, candidate: Leaf | None) -> bool:
        """Tell whether some run gives what the candidate gives at a leaf, and something else than eager."""
        expected = self.ground.expectations.get(path)
        eager = expected.leaf if expected is not None else None
        return any(
            self._alike(other.get(path), candidate) and not self._alike(other.get(path), eager) for other in self.others
        )

    def _alike(self, expectation: Expectation | None, leaf: Leaf | None) -> bool:
        if expectation is None or expectation.leaf.value is None or leaf is None or leaf.value is None:
            there = expectation is not None and expectation.leaf.value is not None
            return there == (leaf is not None and leaf.value is not None)
        dtype = getattr(expectation.leaf.value, "dtype", torch.float32)
        tolerance = replace(self.tolerance, relative=ALIKE.get(dtype, ALIKE[torch.float32]))
        return expectation.judge(leaf, tolerance, spread=False).status is Status.SAME


def forgiven(report: LeafReport) -> LeafReport:
    """Return the report of a leaf that is what another branch gives."""
    return replace(report, status=Status.SAME, mismatches=(), note=KINK)
