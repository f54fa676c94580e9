"""`make bench-oracle`: torchparity, stock `same_two_models` and `assert_close`, side by side.

clean    false alarms on compilers that are right
faults   planted faults found, of those that change a result at all, and of those beyond the noise
cost     time and peak memory of a check over the stock reproducibility run, 100 M parameters
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import random
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import torchparity
from benchmarks.models import MODELS, make
from benchmarks.yardstick import Yardstick
from torchparity import Status, torchapi
from torchparity.compare.leaves import Leaf
from torchparity.faults import KINDS, plant
from torchparity.faults.plant import eligible, is_tensor
from torchparity.run.plan import Plan
from torchparity.run.step import Runner
from torchparity.run.subject import Subject

CLEAN_BACKENDS = ("aot_eager", "aot_eager_decomp_partition", "inductor")
DTYPES = (torch.float32, torch.bfloat16)
DEADLY = ("hang", "segfault", "exits")
BEYOND = 20.0
TOOLS = ("torchparity", "stock", "assert_close")


@dataclass(frozen=True)
class Config:
    """One model in one dtype and one mode."""

    model: str
    dtype: str
    train: bool

    def make(self) -> tuple[torch.nn.Module, tuple[Any, ...]]:
        return make(self.model, getattr(torch, self.dtype))

    def title(self) -> str:
        return f"{self.model} {self.dtype} {'train' if self.train else 'eval'}"


@dataclass
class Row:
    """One case and what each tool said of it: True for 'differs'."""

    config: Config
    what: str
    effect: float
    score: float
    said: dict[str, bool | None]


def configs() -> Iterator[Config]:
    for model in MODELS:
        for dtype in DTYPES:
            for train in (False, True):
                yield Config(model, str(dtype).removeprefix("torch."), train)


# --- what each tool says -------------------------------------------------------------------------


def ask_torchparity(config: Config, backend: Any) -> tuple[bool | None, float]:
    model, inputs = config.make()
    verdict = torchparity.check(model, inputs, backend=backend, train=config.train)
    score = max((max(leaf.score, leaf.aggregate_score) for leaf in verdict.leaves), default=0.0)
    if any(leaf.kind not in ("", "value", "bias") for leaf in verdict.leaves) or verdict.failure:
        score = math.inf
    return {Status.SAME: False, Status.DIFFERS: True, Status.UNKNOWN: None}[verdict.status], score


def ask_stock(config: Config, backend: Any) -> bool | None:
    """The stock reproducibility check: eager with itself, then eager with the compiled model."""
    from torch._dynamo.debug_utils import same_two_models

    model, inputs = config.make()
    model.train(config.train)
    torch.compiler.reset()
    torch.manual_seed(0)
    compiled = torch.compile(model, backend=backend)
    try:
        with fallback_random():
            if not same_two_models(model, model, list(inputs), only_fwd=not config.train):
                return None
            return not same_two_models(model, compiled, list(inputs), only_fwd=not config.train)
    except Exception:  # noqa: BLE001 - the tool dies: it has not found anything
        return None


def ask_assert_close(runner: Runner, model: Any, backend: Any) -> bool:
    """Every leaf of two runs from one state, at assert_close's defaults."""
    expected: dict[str, Any] = {}
    actual: dict[str, Any] = {}
    runner.run(model, lambda leaf: expected.update({leaf.path: copied(leaf)}))
    torch.compiler.reset()
    with fallback_random():
        ending = runner.run(
            torch.compile(model, backend=backend),
            lambda leaf: actual.update({leaf.path: copied(leaf)}),
        )
    if ending.failure is not None or set(expected) != set(actual):
        return True
    try:
        for path, value in expected.items():
            if not isinstance(value, torch.Tensor):
                continue
            torch.testing.assert_close(actual[path], value, check_stride=path.startswith("output"))
    except AssertionError:
        return True
    return False


def copied(leaf: Leaf) -> Any:
    return leaf.value.clone() if isinstance(leaf.value, torch.Tensor) else leaf.value


def fallback_random() -> Any:
    return torchapi.patched_config({"inductor.fallback_random": True})


def runner_for(config: Config) -> tuple[Runner, Any]:
    model, inputs = config.make()
    plan = Plan(training=config.train, backward=config.train)
    return Runner(Subject(model, inputs), plan), model


# --- clean compilers -----------------------------------------------------------------------------


def bench_clean(backends: list[str], chosen: list[Config], console: Console) -> list[Row]:
    rows = []
    for config in chosen:
        for backend in backends:
            said, score = ask_torchparity(config, backend)
            runner, model = runner_for(config)
            row = Row(config, backend, 0.0, score, {"torchparity": said})
            row.said["stock"] = ask_stock(config, backend)
            row.said["assert_close"] = ask_assert_close(runner, model, backend)
            rows.append(row)
            console.print(f"  clean {config.title()} {backend}: {row.said}, score {score:.2f}", highlight=False)
    return rows


# --- planted faults ------------------------------------------------------------------------------


def count_sites(config: Config) -> dict[tuple[str, str], int]:
    """Compile once, and count the places where each kind of fault could stand."""
    counts: dict[tuple[str, str], int] = {}

    def counter(where: str) -> Callable[..., Any]:
        def compile_graph(graph_module: Any, inputs: list[Any]) -> Any:
            mutated = torchapi.mutated_inputs() if where == "forward" else []
            for kind, fault in KINDS.items():
                found = 0
                if fault.place == "operation":
                    found = sum(eligible(fault, node) for node in graph_module.graph.nodes)
                elif where == "forward" and fault.place == "mutation":
                    found = len(mutated)
                elif fault.place == "output" and where == "forward":
                    output = next(node for node in graph_module.graph.nodes if node.op == "output")
                    seen = torchapi.visible_outputs(len(output.args[0]))
                    visible = output.args[0][len(mutated) : seen]
                    found = sum(isinstance(node, torch.fx.Node) and is_tensor(node, integers=False) for node in visible)
                elif fault.place == "compile":
                    found = 1
                counts[kind, where] = counts.get((kind, where), 0) + found
            return torchapi.boxed(graph_module.forward)

        return compile_graph

    runner, model = runner_for(config)
    torch.compiler.reset()
    backend = torchapi.aot_backend(forward=counter("forward"), backward=counter("backward"))
    runner.run(torch.compile(model, backend=backend), lambda leaf: None)
    return counts


def bench_faults(each: int, chosen: list[Config], console: Console, seed: int) -> list[Row]:
    rows = []
    for config in chosen:
        counts = count_sites(config)
        dice = random.Random(f"{seed} {config.title()}")
        cases = [
            (kind, where, dice.randrange(count))
            for (kind, where), count in sorted(counts.items())
            if count and kind not in DEADLY
        ]
        dice.shuffle(cases)
        runner, model = runner_for(config)
        yardstick = Yardstick(runner, model)
        for kind, where, site in cases[:each]:
            rows.append(one_fault(config, runner, model, yardstick, (kind, where, site)))
            row = rows[-1]
            console.print(
                f"  {config.title()} {row.what}: effect {row.effect:.3g}, score {row.score:.3g}, {row.said}",
                highlight=False,
            )
    return rows


def one_fault(config: Config, runner: Runner, model: Any, yardstick: Yardstick, case: tuple[str, str, int]) -> Row:
    kind, where, site = case

    def backend() -> Any:
        return plant(kind, where=where, site=site)

    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend())
    effect = max(yardstick.effect(compiled) for _ in range(2))
    said, score = ask_torchparity(config, backend())
    if KINDS[kind].place == "output":
        effect = math.inf
    row = Row(config, f"{kind} {where} {site}", effect, score, {"torchparity": said})
    row.said["stock"] = ask_stock(config, backend())
    row.said["assert_close"] = ask_assert_close(runner, model, backend())
    return row


# --- tables --------------------------------------------------------------------------------------


def found(rows: list[Row], tool: str) -> str:
    hits = sum(row.said[tool] is True for row in rows)
    return f"{hits} of {len(rows)} ({100 * hits / len(rows):.1f} %)" if rows else "none"


def report(clean: list[Row], faults: list[Row], console: Console) -> None:
    table = Table("", *TOOLS, title="the oracle, side by side")
    for backend in dict.fromkeys(row.what for row in clean):
        rows = [row for row in clean if row.what == backend]
        cells = []
        for tool in TOOLS:
            alarms = sum(row.said[tool] is True for row in rows)
            silent = sum(row.said[tool] is None for row in rows)
            cells.append(f"{alarms} of {len(rows)}" + (f", {silent} undecided" if silent else ""))
        table.add_row(f"false alarms, {backend}", *cells)
    for dtype in ("float32", "bfloat16"):
        rows = [row for row in faults if row.config.dtype == dtype]
        changing = [row for row in rows if row.effect > 0]
        beyond = [row for row in rows if row.effect > BEYOND]
        table.add_row(f"faults found, {dtype}, all that change anything", *(found(changing, t) for t in TOOLS))
        table.add_row(f"faults found, {dtype}, beyond {BEYOND:g} x noise", *(found(beyond, t) for t in TOOLS))
    console.print(table)
    missed = [row for row in faults if row.effect > BEYOND and row.said["torchparity"] is not True]
    for row in missed:
        console.print(f"missed: {row.config.title()} {row.what}, effect {row.effect:.3g}, score {row.score:.3g}")
    histogram("clean scores", [row.score for row in clean if row.score > 0], console)
    histogram("planted scores", [row.score for row in faults if row.effect > BEYOND], console)


def histogram(title: str, scores: list[float], console: Console) -> None:
    """Print counts by factor of two, so that the threshold can be seen between two heaps."""
    if not scores:
        return
    console.print(f"{title}: {len(scores)}, median {statistics.median(scores):.3g}, "
                  f"least {min(scores):.3g}, most {max(scores):.3g}")  # fmt: skip
    edges = [0.0, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 1024, 1 << 20, math.inf]
    for low, high in itertools.pairwise(edges):
        count = sum(low <= score < high for score in scores) + (high == math.inf) * scores.count(math.inf)
        bar = "#" * min(70, math.ceil(70 * count / len(scores)))
        console.print(f"  {low:>8g} .. {high:<8g} {count:5d} {bar}", highlight=False)


def bench_cost(console: Console) -> dict[str, dict[str, float]]:
    """Run each tool in a process of its own, and print the ratios."""
    results: dict[str, dict[str, float]] = {}
    for tool in ("torchparity", "stock", "stock-module"):
        command = [sys.executable, "-m", "benchmarks.oracle_cost", tool]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        results[tool] = json.loads(output.splitlines()[-1])
        console.print(f"  {tool}: {results[tool]}", highlight=False)
    table = Table("100 M parameters, aot_eager, train", "torchparity", "stock", "ratio")
    ours = results["torchparity"]
    for name, label in (
        ("stock", "stock with its float64 reference (a GraphModule)"),
        ("stock-module", "stock on a plain module (its float64 reference fails)"),
    ):
        for key, unit in (("seconds", "s"), ("peak_mib", "MiB")):
            ratio = ours[key] / results[name][key]
            table.add_row(
                f"{label}: {key}",
                f"{ours[key]:.1f} {unit}",
                f"{results[name][key]:.1f} {unit}",
                f"{ratio:.2f}",
            )
    console.print(table)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["clean", "faults", "cost"])
    parser.add_argument("--each", type=int, default=12, help="planted faults for each configuration")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--backends", nargs="*", default=list(CLEAN_BACKENDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    console = Console(width=150)
    chosen = [config for config in configs() if config.model in options.models]
    clean = bench_clean(options.backends, chosen, console) if "clean" in options.parts else []
    faults = bench_faults(options.each, chosen, console, options.seed) if "faults" in options.parts else []
    report(clean, faults, console)
    cost = bench_cost(console) if "cost" in options.parts else {}
    if options.json:
        rows = {"clean": [asdict(row) for row in clean], "faults": [asdict(row) for row in faults]}
        options.json.write_text(json.dumps({**rows, "cost": cost}, default=str, indent=1))


if __name__ == "__main__":
    main()
