"""Runs that are right, put in the candidate's place: where they are called wrong too, that is no evidence against it.

A score counts in units of a spread that a few noise runs told. Where single elements are wild (batch norm over two
numbers: its gradient is large where they are nearly equal and next to nothing elsewhere), no few runs tell it, and
the next right run stands as far outside as a candidate does. So a few more noise runs are judged as the
candidate is, and widen nothing. Where one of them is called wrong at a leaf, a candidate must be clearly farther off.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from torchparity.compare.expectation import Expectation
from torchparity.compare.judgement import Tolerance
from torchparity.compare.leaves import Leaf
from torchparity.judge.kinks import followable
from torchparity.records import LeafReport

# At least and at most so many right runs; and at least so many where a leaf is far off and amplified noise is not.
FEWEST_RIGHT, MOST_RIGHT = 4, 16
FEWEST_WHERE_FAR = 2
# A share of the threshold that no right run comes near at a leaf of ordinary numbers; where none does, few runs do.
WILD = 0.5
# So many times as far off as any right run, and a leaf is wrong.
FARTHER = 2.0


class Innocents:
    """Right runs, judged at the leaves where the candidate is called wrong."""

    def __init__(
        self,
        accused: Mapping[str, LeafReport],
        expectations: Mapping[str, Expectation],
        tolerance: Tolerance,
        *,
        far: bool = False,
    ) -> None:
        # What no rounding explains decides, whatever right runs do.
        rounded = all(
            path in expectations and followable(report) and not expectations[path].exact
            for path, report in accused.items()
        )
        self.expectations = {path: expectations[path] for path in accused} if rounded else {}
        self.tolerance = tolerance
        self.least = FEWEST_WHERE_FAR if far else FEWEST_RIGHT
        self.scores = {path: measures(accused[path]) for path in self.expectations}
        # The farthest that any right run went at each leaf: one number of it, and the whole.
        self.right = dict.fromkeys(self.expectations, (0.0, 0.0))

    def want_another(self, runs: int) -> bool:
        """Tell whether a right run after so many is worth making."""
        if not self.right or self.forgiven == set(self.right):
            return False
        return runs < (MOST_RIGHT if self.wild else self.least)

    def watch(self, leaf: Leaf) -> None:
        """Judge one leaf of a right run as if it were the candidate's."""
        report = self.expectations[leaf.path].judge(leaf, self.tolerance, spread=False)
        if not report.mismatches or followable(report):
            self.right[leaf.path] = farther(self.right[leaf.path], measures(report))

    @property
    def wild(self) -> set[str]:
        """The leaves at which a right run comes near to being called wrong."""
        return {path for path, found in self.right.items() if max(found) > WILD * self.tolerance.threshold}

    @property
    def forgiven(self) -> set[str]:
        """The wild leaves at which the candidate is no farther off than right runs, there or at others of that role."""
        threshold = self.tolerance.threshold
        found = set()
        for path in self.wild:
            role = self.expectations[path].leaf.role
            alike = [right for other, right in self.right.items() if self.expectations[other].leaf.role == role]
            farthest = functools.reduce(farther, alike)
            allowed = [FARTHER * score if score > threshold else threshold for score in farthest]
            if all(score <= most for score, most in zip(self.scores[path], allowed, strict=True)):
                found.add(path)
        return found


def measures(report: LeafReport) -> tuple[float, float]:
    """Return how far off a leaf is: one number of it, and the whole."""
    return report.score, report.aggregate_score


def farther(left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
    """Return the larger of each measure."""
    return max(left[0], right[0]), max(left[1], right[1])
