"""`make bench-minify`: ours and the stock minifier on the same failures, in one run, fresh caches for both.

synthetic  predicates that only look at the graph: queries, and the nodes that are left
inductor   the wrong relu that inductor keeps for tests, in a transformer's forward and backward graph of 500 nodes
bugs       real bugs of the installed PyTorch, each in a model of more than 200 nodes (benchmarks/bugs.py)
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import operator
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.fx import Graph, GraphModule

import torchparity
from benchmarks.bugs import BUGS, Bug
from torchparity.errors import ParityError
from torchparity.minifier.log import NAME as LOG
from torchparity.minifier.log import Log
from torchparity.records import signature_of
from torchparity.repro.case import Case
from torchparity.repro.opening import open_case
from torchparity.workers.pool import Pool

Predicate = Callable[[GraphModule, Any], bool]
INJECT = "inductor.cpp.inject_relu_bug_TESTING_ONLY"


# --- synthetic -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """A graph, a predicate, and how many nodes the smallest graph that fails has."""

    name: str
    graph: Callable[[], tuple[GraphModule, list[torch.Tensor]]]
    fails: Predicate
    optimum: int


def chain(length: int, culprits: dict[int, Callable[..., Any]]) -> tuple[GraphModule, list[torch.Tensor]]:
    graph = Graph()
    value = graph.placeholder("x")
    for place in range(length):
        value = graph.call_function(culprits.get(place, torch.relu), (value,))
    graph.output((value,))
    return GraphModule({}, graph), [torch.randn(4)]


def residual(nodes: int) -> tuple[GraphModule, list[torch.Tensor]]:
    graph = Graph()
    value = graph.placeholder("x")
    outputs = []
    blocks = (nodes - 2) // 3
    for block in range(blocks):
        inside = graph.call_function(torch.sin if block == blocks // 2 else torch.relu, (value,))
        value = graph.call_function(operator.add, (value, graph.call_function(torch.tanh, (inside,))))
        outputs.append(value)
    last = graph.call_function(torch.cos, (graph.call_function(torch.abs, (value,)),))
    graph.output((*outputs, last))
    return GraphModule({}, graph), [torch.randn(4)]


def with_cond() -> tuple[GraphModule, list[torch.Tensor]]:
    """A culprit inside the body of a `cond`, caught from Dynamo."""
    caught: list[tuple[GraphModule, list[Any]]] = []

    def keep(graph_module: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        caught.append((graph_module, [value.detach().clone() for value in inputs]))
        return graph_module.forward

    def yes(x: torch.Tensor) -> torch.Tensor:
        return x.tanh().sin().exp()

    def no(x: torch.Tensor) -> torch.Tensor:
        return x.cos().tanh()

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = x.relu() + 1
        chosen: torch.Tensor = torch.cond(x.sum() > 0, yes, no, (x,))
        return chosen.abs()

    torch.compile(program, backend=keep)(torch.randn(4))
    return caught[0]


def called(graph_module: GraphModule) -> list[Any]:
    return [node.target for node in graph_module.graph.nodes if node.op.startswith("call")]


def has(*wanted: Any) -> Predicate:
    return lambda graph_module, inputs: set(wanted) <= set(called(graph_module))


def depends(first: Any, second: Any) -> Predicate:
    """Second takes, directly or not, what first gives."""

    def fails(graph_module: GraphModule, inputs: Any) -> bool:
        behind: dict[Any, set[Any]] = {}
        for node in graph_module.graph.nodes:
            behind[node] = {node.target}.union(*(behind[argument] for argument in node.all_input_nodes))
            if node.target is second and first in behind[node]:
                return True
        return False

    return fails


def any_two(graph_module: GraphModule, inputs: Any) -> bool:
    return len({torch.sin, torch.cos, torch.exp} & set(called(graph_module))) >= 2


def sin_in_body(graph_module: GraphModule, inputs: Any) -> bool:
    bodies = [module for name, module in graph_module.named_modules() if name and isinstance(module, GraphModule)]
    inside = {str(node.target) for body in bodies for node in body.graph.nodes if node.op.startswith("call")}
    return any("cond" in str(target) for target in called(graph_module)) and any("sin" in name for name in inside)


def synthetic_cases() -> Iterator[Synthetic]:
    for length in (50, 200, 800, 3200):
        place = {length * 2 // 3: torch.sin}
        yield Synthetic(
            name=f"(a) one culprit, chain of {length}",
            graph=lambda length=length, place=place: chain(length, place),
            fails=has(torch.sin),
            optimum=1,
        )
    for length in (100, 200, 400, 800, 3200):
        places = {length // 3: torch.sin, length * 3 // 4: torch.cos}
        yield Synthetic(
            name=f"(b) two that depend, chain of {length}",
            graph=lambda length=length, places=places: chain(length, places),
            fails=depends(torch.sin, torch.cos),
            optimum=2,
        )
    for nodes in (62, 122, 242, 962):
        yield Synthetic(
            name=f"(c) residual graph of {nodes}",
            graph=lambda nodes=nodes: residual(nodes),
            fails=depends(torch.sin, torch.cos),
            optimum=2,
        )
    three = {30: torch.sin, 90: torch.cos, 150: torch.exp}
    yield Synthetic(
        name="(d) any two of three, chain of 200", graph=lambda: chain(200, three), fails=any_two, optimum=2
    )
    yield Synthetic(name="(e) inside a cond", graph=with_cond, fails=sin_in_body, optimum=2)


class TooLong(Exception):
    """The stock tool is stopped here."""


def stock_synthetic(case: Synthetic, limit: float) -> tuple[int, str]:
    """Return the queries of the stock minifier and the nodes it leaves."""
    minifier = torchparity.torchapi.lookup("torch._functorch.fx_minifier.minifier")
    queries = 0
    smallest = 10**9
    started = time.monotonic()

    def fails(graph_module: GraphModule, inputs: Any) -> bool:
        nonlocal queries, smallest
        queries += 1
        if time.monotonic() - started > limit:
            raise TooLong
        failed = case.fails(graph_module, inputs)
        if failed:
            smallest = min(smallest, len(called(graph_module)))
        return failed

    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            graph_module, _ = minifier(*case.graph(), fails, dump_state=lambda *_: None)
        return queries, str(len(called(graph_module)))
    except TooLong:
        return queries, f"{smallest if smallest < 10**9 else 'all'}, stopped at {limit:.0f} s"
    except Exception as error:  # noqa: BLE001 - what the stock tool raises is its result
        return queries, type(error).__name__


def bench_synthetic(console: Console, limit: float) -> None:
    table = Table("case", "stock queries", "stock nodes", "our queries", "our nodes", "optimum", "queries, ratio")
    for case in synthetic_cases():
        theirs, left = stock_synthetic(case, limit)
        ours = torchparity.reduce_graph(*case.graph(), fails=case.fails)
        inside = sum(
            node.op.startswith("call")
            for name, module in ours.graph_module.named_modules()
            if name and isinstance(module, GraphModule)
            for node in module.graph.nodes
        )
        table.add_row(
            case.name,
            str(theirs),
            left,
            str(ours.queries),
            str(ours.compute_nodes + inside),
            str(case.optimum),
            f"{theirs / ours.queries:.1f}" if left.isdigit() else "not finished",
        )
    console.print(table)


# --- inductor ------------------------------------------------------------------------------------


class Backwards(torch.autograd.Function):
    """The identity; its backward pass takes a relu."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient + torch.relu(gradient)


class Block(nn.Module):
    """Attention and an MLP, with norms before them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(self.norm(x)).chunk(3, -1)
        weights = torch.softmax(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, -1)
        x = x + self.out(weights @ value)
        hidden: torch.Tensor = self.down(nn.functional.gelu(self.up(self.second(x))))
        return x + hidden


class Transformer(nn.Module):
    """Blocks around one relu: in the forward pass, or only in the backward pass."""

    def __init__(self, blocks: int, *, backward: bool, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.backward_only = backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place == len(self.blocks) // 2:
                x = Backwards.apply(x) if self.backward_only else x + torch.relu(x)
        return x


def wrong_graph(*, backward: bool, blocks: int) -> Case:
    """Return the AOT graph of the transformer that holds the relu."""
    torch.manual_seed(0)
    model = Transformer(blocks, backward=backward)
    cases = torchparity.capture(
        model, (torch.randn(2, 16, 32),), backward=backward, config={INJECT: "accuracy"}, backend="inductor"
    )
    direction = "backward" if backward else "forward"
    return next(case for case in cases if case.level == "aot" and case.direction == direction)


def stock_script(case: Case, folder: Path) -> Path:
    """Write the repro of the stock tool for a graph, ready to be minified by it."""
    save = torchparity.torchapi.lookup("torch._dynamo.repro.after_aot.save_graph_repro")
    loaded = open_case(case)
    model, inputs, _ = loaded.make()
    graph_module = loaded.graph(model)
    for node in graph_module.graph.nodes:
        node.type = None  # Annotations of our source, which the stock writer would print without quotes.
    graph_module.recompile()
    path = folder / "stock.py"
    with case.recipe.active(), path.open("w") as file:
        save(
            file,
            graph_module,
            inputs,
            "inductor",
            save_dir=str(folder / "saved"),
            command="minify",
            accuracy=True,
        )
    return path


def stock_inductor(case: Case, *, isolate: bool, limit: float) -> tuple[float, int, str, str]:
    """Return the seconds, the queries and the nodes of the stock minifier on a graph, and how it ended."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = stock_script(case, folder)
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
        command = [sys.executable, str(path), "minify", "--isolate" if isolate else "--no-isolate", "--accuracy"]
        started = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
            text, end = done.stdout + done.stderr, f"exit {done.returncode}"
        except subprocess.TimeoutExpired as expired:
            text = str(expired.stdout or b"", "utf-8", "replace") + str(expired.stderr or b"", "utf-8", "replace")
            end = "stopped"
        spent = time.monotonic() - started
        queries = max((int(number) for number in re.findall(r"Made (\d+) queries", text)), default=0)
        written = [folder / "repro.py"] if (folder / "repro.py").exists() else sorted(folder.rglob("checkpoints/*.py"))
        left = len(re.findall(r"= torch\.ops\.", written[-1].read_text())) if written else -1
        return spent, queries, f"{left}" if left >= 0 else "no script", end


# So that the graphs after AOTAutograd have about 500 operations.
BLOCKS = {"forward": 8, "backward": 6}


def known_to_fail(case: Case) -> Case:
    """Return a case as `check` leaves it, with how it was seen to fail; stock's script is told that by `--accuracy`."""
    with tempfile.TemporaryDirectory() as name:
        verdict = torchparity.run_bundle(torchparity.write_bundle(case, Path(name) / "case"))
    assert verdict.status is torchparity.Status.DIFFERS, verdict.reasons
    return replace(case, signature=signature_of(None, verdict))


def our_inductor(case: Case) -> tuple[float, int, int, str]:
    """Return the seconds of our command, its queries, the nodes that are left, and how often the script failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torchparity.write_bundle(case, folder / "case")
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
        command = [sys.executable, "-m", "torchparity", "minify", "case", "--out", "small", "-q"]
        started = time.monotonic()
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False)
        spent = time.monotonic() - started
        assert done.returncode in (0, 125), done.returncode
        log = Log(folder / "small" / LOG)
        ended = next(entry for entry in log.entries() if entry["event"] == "ended")
        left = torchparity.read_bundle(folder / "small" / "case").compute_nodes
        return spent, log.asked, left, "reproduced {} of {}".format(*ended["reproduced"])


def bench_inductor(console: Console, directions: list[str], limit: float, *, stock: bool) -> None:
    """Both tools as commands of their own, on the same graph, each with an empty cache of its compiler."""
    table = Table("graph", "tool", "seconds", "queries", "nodes left", "ends", "over ours", "over ours, captured")
    for direction in directions:
        case = wrong_graph(backward=direction == "backward", blocks=BLOCKS[direction])
        name = f"{case.direction}, {case.compute_nodes} operations"
        ours = []
        for title, start in (("ours, isolated", known_to_fail(case)), ("ours, as captured", case)):
            seconds, asked, nodes, again = our_inductor(start)
            ours.append(seconds)
            table.add_row(name, title, f"{seconds:.1f}", str(asked), str(nodes), again, "", "")
            print(f"{name}: {title} {seconds:.1f} s, {asked} queries, {nodes} left, {again}", file=sys.stderr)
        for isolate in (False, True) if stock else ():
            spent, queries, left, end = stock_inductor(case, isolate=isolate, limit=limit)
            title = "stock, isolated" if isolate else "stock, --no-isolate"
            ratios = [f"{spent / seconds:.1f}" for seconds in ours]
            table.add_row(name, title, f"{spent:.1f}", str(queries), left, end, *ratios)
            print(f"{name}: {title} {spent:.1f} s, {left} left, {end} {ratios}", file=sys.stderr)
    console.print(table)


# --- real bugs -----------------------------------------------------------------------------------


STOCK_PROGRAM = """
import sys, warnings
sys.path.insert(0, {root!r})
warnings.simplefilter("ignore")
import torch, torch._dynamo
from benchmarks.bugs import BY_NAME
model, args = BY_NAME[{name!r}].make()
result = torch.compile(model)(*args)
if {train}:
    result.sum().backward()
"""


def stock_bug(bug: Bug, after: str, limit: float) -> str:
    """Return what the stock tool, told to minify wrong results, leaves of a bug."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = str(Path(__file__).resolve().parents[1])
        (folder / "program.py").write_text(STOCK_PROGRAM.format(root=root, name=bug.name, train=bug.train))
        environment = {
            **os.environ,
            "TORCHDYNAMO_REPRO_AFTER": after,
            "TORCHDYNAMO_REPRO_LEVEL": "4",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        }
        try:
            first = run_quietly([sys.executable, "program.py"], folder, environment, limit)
            launchers = sorted(folder.rglob("minifier_launcher.py"))
            if not launchers:
                return f"no script (exit {first})"
            run_quietly([sys.executable, str(launchers[-1]), "minify"], folder, environment, limit)
        except subprocess.TimeoutExpired:
            return f"stopped at {limit:.0f} s"
        scripts = sorted(folder.rglob("repro.py"))
        if not scripts:
            return "no small script"
        return f"{len(re.findall(r'^        [a-z_0-9]+.* = ', scripts[-1].read_text(), re.MULTILINE))} lines"


def run_quietly(command: list[str], folder: Path, environment: dict[str, str], limit: float) -> int:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=limit, check=False)
    return done.returncode


def bench_bugs(console: Console, names: list[str], limit: float, *, stock: bool, out: Path | None) -> None:
    columns = ("thread", "bug", "kind", "level", "from", "nodes", "inputs", "queries", "seconds", "reproduced", "stock")
    table = Table(*columns)
    rows: list[dict[str, Any]] = []
    with Pool(workers=1) as pool:
        for bug in BUGS:
            if names and bug.name not in names:
                continue
            started = time.monotonic()
            row: dict[str, Any] = {"thread": bug.number, "bug": bug.name}
            try:
                model, args = bug.make()
                case, verdict = torchparity.find_failing(model, args, train=bug.train, pool=pool)
                with tempfile.TemporaryDirectory() as folder:
                    place = out / bug.name if out is not None else Path(folder) / "small"
                    small = torchparity.minify(case, out=place, pool=pool, verdict=verdict)
                row |= {
                    "kind": small.signature.kind,
                    "level": case.level,
                    "from": case.compute_nodes,
                    "nodes": small.compute_nodes,
                    "inputs": len(small.case.inputs),
                    "queries": small.queries,
                    "seconds": round(time.monotonic() - started),
                    "reproduced": "{} of {}".format(*small.reproduced),
                }
            except ParityError as error:
                row |= {"kind": f"{type(error).__name__}: {error}"}
            row["stock"] = (
                "; ".join(f"{after}: {stock_bug(bug, after, limit)}" for after in ("aot", "dynamo")) if stock else ""
            )
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
            table.add_row(*(str(row.get(column, "")) for column in columns))
    console.print(table)
    good = sum(row.get("nodes", 99) <= 3 and row.get("reproduced") == "3 of 3" for row in rows)
    console.print(f"{good} of {len(rows)} end in a verified script of at most 3 operations")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.minify", description=__doc__)
    parser.add_argument("parts", nargs="*", default=[], help="synthetic, inductor, bugs; all of them unless named")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which the stock tool is stopped")
    parser.add_argument("--synthetic-limit", type=float, default=120.0, help="the same for each synthetic graph")
    parser.add_argument("--direction", choices=list(BLOCKS), help="only this graph of the transformer")
    parser.add_argument("--bug", action="append", default=[], help="only this one; may be given again")
    parser.add_argument("--no-stock", action="store_true", help="ours alone")
    parser.add_argument("--out", type=Path, help="keep what ours finds of the bugs here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    console = Console(width=160)
    directions = [options.direction] if options.direction else list(BLOCKS)
    parts = options.parts or ["synthetic", "inductor", "bugs"]
    if "synthetic" in parts:
        bench_synthetic(console, options.synthetic_limit)
    if "inductor" in parts:
        bench_inductor(console, directions, options.limit, stock=not options.no_stock)
    if "bugs" in parts:
        bench_bugs(console, options.bug, options.limit, stock=not options.no_stock, out=options.out)


if __name__ == "__main__":
    main()
