"""`make bench-power`: how much of what can be seen at all in half precision is seen.

For every planted fault there is a detector that knows it: the faulty run minus the clean one is the direction, each
number weighed by the inverse variance of the noise, and how far the run lies in that direction from float64 is its
score, in units of how far the noise goes. No test that does not know the fault can do better than this matched filter.
Our finds over its finds, by its score, are the curve; 16 is twice the threshold.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.models import MODELS
from benchmarks.oracle import DEADLY, Config, ask_torchparity, count_sites, fallback_random, runner_for
from benchmarks.yardstick import PlainNoise, Yardstick
from torchparity.compare.leaves import Leaf
from torchparity.faults import KINDS, plant
from torchparity.run.step import Runner

RUNS = 12
BACKENDS = ("aot_eager", "aot_eager_decomp_partition", "inductor")
STEPS = (2.0, 4.0, 8.0, 16.0, 32.0, 128.0, math.inf)

Difference = dict[str, torch.Tensor]


class Detector:
    """A matched filter for faults that it is told."""

    def __init__(self, runner: Runner, model: Callable[..., Any]) -> None:
        self.runner, self.yardstick = runner, Yardstick(runner, model)
        noise = [PlainNoise(100 + run) for run in range(RUNS)]
        self.noise = [self.difference(model, mode=lambda mode=mode: mode) for mode in noise]
        self.noise.append(self.difference(model))
        self.weights = {}
        for path in self.yardstick.truth:
            variance = sum(sample[path].square() for sample in self.noise if sample) / len(self.noise)
            self.weights[path] = 1 / (variance + variance.mean() / 2).clamp(min=1e-30)

    def difference(self, model: Callable[..., Any], **how: Any) -> Difference | None:
        """Return how far a run lies from float64; None where it fails."""
        found: Difference = {}

        def consume(leaf: Leaf) -> None:
            truth = self.yardstick.truth.get(leaf.path)
            if truth is not None and isinstance(leaf.value, torch.Tensor) and leaf.value.shape == truth.shape:
                found[leaf.path] = leaf.value.double() - truth

        with fallback_random():
            ending = self.runner.run(model, consume, **how)
        return found if ending.failure is None else None

    def score(self, clean: Difference, faulty: Difference) -> float:
        """Return the score of a fault: infinite where it is plain, zero where it changes no bit."""
        if set(clean) != set(faulty):
            return math.inf
        direction = {path: faulty[path] - clean[path] for path in clean}
        if not all(bool(torch.isfinite(moved).all()) for moved in direction.values()):
            return math.inf

        def along(sample: Difference) -> float:
            return sum(float((direction[path] * self.weights[path] * sample[path]).sum()) for path in direction)

        if not any(bool(moved.any()) for moved in direction.values()):
            return 0.0
        spread = math.sqrt(sum(along(sample) ** 2 for sample in self.noise if sample) / len(self.noise))
        return abs(along(faulty)) / spread if spread else math.inf


@dataclass
class Row:
    """One planted fault: what the detector that knows it scores, and what we say and score."""

    what: str
    detector: float
    said: bool | None
    score: float


def bench(config: Config, each: int, seed: int, console: Console) -> list[Row]:
    """Plant faults in one model, and ask both."""
    runner, model = runner_for(config)
    detector = Detector(runner, model)
    torch.compiler.reset()
    clean = detector.difference(torch.compile(model, backend="aot_eager"))
    assert clean is not None
    dice = random.Random(f"{seed} {config.title()}")
    sites = [
        (kind, where, dice.randrange(count))
        for (kind, where), count in sorted(count_sites(config).items())
        if count and kind not in DEADLY and KINDS[kind].place == "operation"
    ]
    dice.shuffle(sites)
    rows = []
    for kind, where, site in sites[:each]:
        torch.compiler.reset()
        faulty = detector.difference(torch.compile(model, backend=plant(kind, where=where, site=site)))
        detected = math.inf if faulty is None else detector.score(clean, faulty)
        said, score = ask_torchparity(config, plant(kind, where=where, site=site)) if detected else (False, 0.0)
        rows.append(Row(f"{config.title()} {kind} {where} {site}", detected, said, score))
        console.print(f"  {rows[-1].what}: detector {detected:.3g}, ours {said} {score:.3g}", highlight=False)
    return rows


def bench_clean(config: Config, console: Console) -> list[Row]:
    """Ask about compilers that are right."""
    rows = []
    for backend in BACKENDS:
        said, score = ask_torchparity(config, backend)
        rows.append(Row(f"{config.title()} {backend}", 0.0, said, score))
        console.print(f"  clean {rows[-1].what}: {said}, score {score:.2f}", highlight=False)
    return rows


def report(faults: list[Row], clean: list[Row], console: Console) -> None:
    """Print the curve."""
    table = Table("the detector's score", "faults", "ours", title="what can be seen in half precision, and what is")
    below = 0.0
    for step in STEPS:
        rows = [row for row in faults if below < row.detector <= step]
        hits = sum(row.said is True for row in rows)
        share = f"{hits} ({100 * hits / len(rows):.0f} %)" if rows else "-"
        table.add_row(f"{below:g} to {step:g}", str(len(rows)), share)
        below = step
    console.print(table)
    seen = [row for row in faults if row.detector >= 16]
    hits = sum(row.said is True for row in seen)
    console.print(f"at 16 and above: {hits} of {len(seen)}; no bit changed: {sum(not row.detector for row in faults)}")
    console.print(f"false alarms: {sum(row.said is True for row in clean)} of {len(clean)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--dtypes", nargs="*", default=["bfloat16"], choices=["bfloat16", "float16"])
    parser.add_argument("--each", type=int, default=24, help="faults in each model and mode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["clean", "faults"])
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    console = Console(width=120)
    faults: list[Row] = []
    clean: list[Row] = []
    for model in options.models:
        for dtype in options.dtypes:
            for train in (False, True):
                config = Config(model, dtype, train)
                if options.only != "faults":
                    clean += bench_clean(config, console)
                if options.only != "clean":
                    faults += bench(config, options.each, options.seed, console)
    report(faults, clean, console)


if __name__ == "__main__":
    main()
