"""`make bench-diagnosis`: locate and blame on planted faults and on real bugs.

locate    a wrong operation in a transformer's forward and backward graph of 300 nodes, compiled by inductor: is it the
          one that is named, and in how many compilations; stock `analyze` on the first of each beside it
blame     a fault at every stage of the compiler: which stage and which part of it is named, in how many runs
passes    clean inductor over the models of the oracle's benchmark: does any pass seem to change the numbers?
bugs      real bugs of the installed PyTorch, each operation by itself: the stage, beside what its thread or source says
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import torchparity
from benchmarks.bugs import BUGS
from benchmarks.minify import Transformer, stock_script
from benchmarks.models import MODELS, make
from torchparity.errors import ParityError
from torchparity.faults.stages import STAGES, wrong_stage
from torchparity.graphs.extract import opened_graph
from torchparity.repro.case import Case
from torchparity.repro.names import operation_name
from torchparity.repro.opening import open_case
from torchparity.workers.pool import Pool

# Operations that inductor's passes neither remove nor reorder among themselves.
OPERATIONS = (
    "exp",
    "rsqrt",
    "erf",
    "tanh",
    "relu",
    "sub",
    "mul",
    "add",
    "bmm",
    "addmm",
    "mean",
    "sum",
    "amax",
    "div",
    "mm",
)
# What the bugs' own table calls a stage, and what blame calls it.
SAME_STAGE = {
    "lowering": ("lowerings", "codegen"),
    "codegen": ("codegen", "lowerings"),
    "post-grad pass": ("post_grad_passes",),
    "joint-graph pass": ("joint_graph_passes",),
    "decomposition": ("decomposition",),
    "decomposition, backward": ("decomposition",),
    "functionalization": ("aot_autograd",),
    "AOTAutograd, backward": ("aot_autograd",),
    "dynamo": ("dynamo",),
}


def graphs(blocks: int) -> Iterator[Case]:
    """Yield the forward and the backward graph of a transformer, as inductor gets them."""
    torch.manual_seed(0)
    model = Transformer(blocks, backward=False)
    cases = torchparity.capture(model, (torch.randn(2, 16, 32),), backward=True, backend="inductor")
    for direction in ("forward", "backward"):
        yield next(case for case in cases if case.level == "aot" and case.direction == direction)


def sites(case: Case, count: int) -> list[tuple[str, int, int]]:
    """Return operations to be wrong at: the name, which of its uses, and its place among all operations."""
    extractor = opened_graph(open_case(case))
    found: list[tuple[str, int, int]] = []
    uses: Counter[str] = Counter()
    for place, node in enumerate(extractor.compute):
        name = operation_name(node)
        if name in OPERATIONS:
            value = extractor.recording.results[node]
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                found.append((name, uses[name], place))
            uses[name] += 1
    return random.Random(0).sample(found, min(count, len(found)))


def near(case: Case, place: int, other: int) -> bool:
    """Tell whether two operations of a graph are the same, or one feeds the other directly."""
    extractor = opened_graph(open_case(case))
    left, right = extractor.compute[place], extractor.compute[other]
    return left is right or left in right.all_input_nodes or right in left.all_input_nodes


def located(case: Case, site: tuple[str, int, int], pool: Pool) -> tuple[bool, bool, bool]:
    """Locate one planted fault; tell whether it was named exactly, nearly, and in at most three compilations."""
    name, use, place = site
    # Before autograd, where operations still stand in the order of the case's source.
    wrong = replace(case.request, backend=wrong_stage("pre_grad", name, site=use, size=0.05))
    try:
        found = torchparity.locate(replace(case, request=wrong), pool=pool)
    except ParityError as error:
        print(f"{case.direction} {name} {use}: {error}", file=sys.stderr, flush=True)
        return False, False, False
    exact = found.culprit is not None and found.culprit.place == place
    beside = found.culprit is not None and near(case, place, found.culprit.place)
    told = f"{found.culprit.operation} {found.culprit.place}" if found.culprit else "nothing"
    print(
        f"{case.direction} {name} {use} at {place}: {told}, {found.compiles} compilations, "
        f"{found.seconds:.0f} s{'' if exact else '  (not exact)'}",
        file=sys.stderr,
        flush=True,
    )
    return exact, beside, found.compiles <= 3


def bench_locate(console: Console, count: int, blocks: dict[str, int], *, jobs: int, stock: bool) -> None:
    table = Table("graph", "tool", "cases", "exact", "near", "at most 3 compilations", "seconds")
    with Pool(workers=jobs) as pool, ThreadPoolExecutor(jobs) as threads:
        for case in [next(one for one in graphs(size) if one.direction == way) for way, size in blocks.items()]:
            began = time.monotonic()
            chosen = sites(case, count)
            answers = list(threads.map(functools.partial(located, case, pool=pool), chosen))
            spent = (time.monotonic() - began) * jobs / max(1, len(chosen))
            title = f"{case.direction}, {case.compute_nodes} operations"
            row = [str(len(chosen)), *(str(sum(column)) for column in zip(*answers, strict=True))]
            table.add_row(title, "ours", *row, f"{spent:.0f} each")
            if stock:
                table.add_row(title, "stock analyze", "1", *stock_analyze(case))
    console.print(table)


def stock_analyze(case: Case, limit: float = 600.0) -> list[str]:
    """Return how the stock tool's `analyze` ends on inductor's own wrong relu, and how long it takes."""
    inject = "inductor.cpp.inject_relu_bug_TESTING_ONLY"
    wrong = replace(case, request=replace(case.request, config={**case.recipe.config, inject: "accuracy"}))
    with tempfile.TemporaryDirectory() as name:
        script = stock_script(wrong, Path(name))
        command = [sys.executable, str(script), "analyze"]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{name}/cache"}
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=name, env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
            text = (done.stdout + done.stderr).strip().splitlines()
            ending = f"exit {done.returncode}: {text[-1][:60] if text else 'no word'}"
        except subprocess.TimeoutExpired:
            ending = "stopped"
        return [ending, "", "", f"{time.monotonic() - began:.0f}"]


class Small(nn.Module):
    """A model with every sort of operation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(self.norm(x)))
        y = self.second(nn.functional.gelu(y + x))
        return torch.softmax(torch.tanh(y) * 2, -1) + torch.exp(-x.abs())


PLANTED = {"decomposition": "gelu", "backend": "gelu", "lowering": "tanh", "codegen": "tanh"}


def bench_blame(console: Console) -> None:
    table = Table("planted at", "in", "named", "part", "setting", "runs", "seconds")
    torch.manual_seed(0)
    model, inputs = Small(), (torch.randn(8, 64),)
    with Pool(workers=1) as pool:
        for stage in (*STAGES, "backend"):
            operation = PLANTED.get(stage, "relu")
            backend = (
                torchparity.faults.plant("scale_percent", site=0)
                if stage == "backend"
                else wrong_stage(stage, operation)
            )
            (case, *_) = torchparity.capture(model, inputs, backend=backend)
            found = torchparity.blame(case, pool=pool)
            setting = ", ".join(f"{key}={value!r}" for key, value in found.switch.items())
            table.add_row(
                stage, operation, found.stage, found.part, setting, str(found.queries), f"{found.seconds:.0f}"
            )
            print(f"{stage}: {found.stage} {found.part} {setting}, {found.queries} runs", file=sys.stderr, flush=True)
    console.print(table)


def bench_bugs(console: Console, names: list[str]) -> None:
    table = Table("thread", "bug", "its stage", "named", "part", "setting", "runs", "right")
    right = 0
    chosen = [bug for bug in BUGS if not names or bug.name in names]
    with Pool(workers=1) as pool:
        for bug in chosen:
            try:
                model, inputs = bug.alone()
                case, _ = torchparity.find_failing(model, inputs, train=bug.train, pool=pool)
                found = torchparity.blame(case, pool=pool)
            except ParityError as error:
                table.add_row(str(bug.number), bug.name, bug.stage, str(error), "", "", "", "no")
                print(f"{bug.name}: {error}", file=sys.stderr, flush=True)
                continue
            agrees = found.stage in SAME_STAGE[bug.stage]
            right += agrees
            setting = ", ".join(f"{key}={value!r}" for key, value in found.switch.items())
            row = [str(bug.number), bug.name, bug.stage, found.stage, found.part, setting, str(found.queries)]
            table.add_row(*row, "yes" if agrees else "no")
            print(" | ".join([*row, "yes" if agrees else "no"]), file=sys.stderr, flush=True)
    console.print(table)
    console.print(f"{right} of {len(chosen)} stages agree")


def bench_passes(console: Console) -> None:
    table = Table("model", "dtype", "mode", "passes", "changed a graph", "wrong", "not judged", "seconds")
    alarms = 0
    for name in MODELS:
        for dtype, train in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            model, inputs = make(name, dtype)
            report = torchparity.check_passes(model, inputs, train=train)
            counts = Counter(entry.status for entry in report.passes)
            alarms += counts[torchparity.Status.DIFFERS]
            row = [
                name,
                str(dtype).removeprefix("torch."),
                "train" if train else "eval",
                str(len(report.passes)),
                str(sum(entry.changed for entry in report.passes)),
                str(counts[torchparity.Status.DIFFERS]),
                str(counts[torchparity.Status.UNKNOWN]),
                f"{report.seconds:.0f}",
            ]
            table.add_row(*row)
            first = f": {report.first.name}, {report.first.why}" if report.first is not None else ""
            unknown = {f"{entry.name}: {entry.why}" for entry in report.passes if entry.status.value == "unknown"}
            print(" | ".join(row) + first, *sorted(unknown)[:2], file=sys.stderr, flush=True)
    console.print(table)
    console.print(f"{alarms} false alarms")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["locate", "blame", "passes", "bugs"])
    parser.add_argument("--count", type=int, default=20, help="planted faults in each graph")
    parser.add_argument("--direction", choices=["forward", "backward"], help="only this graph")
    parser.add_argument("--bug", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1, help="planted faults at once")
    parser.add_argument("--no-stock", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    console = Console(width=160)
    blocks = {"forward": 5, "backward": 4}
    if options.direction:
        blocks = {options.direction: blocks[options.direction]}
    if "locate" in options.what:
        bench_locate(console, options.count, blocks, jobs=options.jobs, stock=not options.no_stock)
    if "blame" in options.what:
        bench_blame(console)
    if "passes" in options.what:
        bench_passes(console)
    if "bugs" in options.what:
        bench_bugs(console, options.bug)


if __name__ == "__main__":
    main()
