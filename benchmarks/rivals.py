"""A hunt beside other ways to find bugs of a compiler, each with one process for the same time, side by side.

    python -m venv nnsmith && nnsmith/bin/pip install nnsmith torch==2.13.0
    python -m benchmarks.rivals --nnsmith nnsmith/bin/python --minutes 10

ours      `torchparity hunt`
nnsmith   NNSmith's generator and its comparison (1 %, and an absolute 0.001), with torch.compile as its backend
plain     our programs, torch.compile, and torch.testing.assert_close

What the others call a failure is judged by `torchparity.check` on the same data: what is SAME there is a false alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torchparity.hunting.store import Store

SOURCE = Path(__file__).parents[1] / "src"
# What both others do with a program that they call wrong; it runs in their own interpreter.
COMMON = r"""
import json, sys, time, warnings, logging
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
import torch
import torchparity

def tell(**row):
    print(json.dumps(row), flush=True)

def second_opinion(model, args, backward=False):
    try:
        verdict = torchparity.check(model, args, backward=backward)
        return verdict.status.value, verdict.kind
    except Exception as error:
        return "error", type(error).__name__
"""
NNSMITH = r"""
import random
from multipledispatch import dispatch
from nnsmith.backends.factory import BackendFactory
from nnsmith.graph_gen import model_gen
from nnsmith.materialize import BugReport, Model, TestCase
from nnsmith.materialize.torch import TorchModel
from nnsmith.narrow_spec import auto_opset

class Compiled(BackendFactory):
    @property
    def system_name(self):
        return "torch.compile"

    @dispatch(TorchModel)
    def make_backend(self, model):
        net = model.torch_model.eval()
        torch.compiler.reset()
        compiled = torch.compile(net)

        def run(inputs):
            with torch.no_grad():
                given = [torch.from_numpy(value) for value in inputs.values()]
                results = compiled(*given)
            return {name: value.detach().resolve_conj().numpy() for name, value in zip(net.output_like, results)}

        return run

kind = Model.init("torch", backend_target="cpu")
kind.add_seed_setter()
opset, factory = auto_opset(kind, None), Compiled()
end = time.time() + float(sys.argv[1])
chance = random.Random(int(sys.argv[2]))
while time.time() < end:
    seed = chance.getrandbits(32)
    try:
        drawn = model_gen(opset=opset, method="symbolic-cinit", seed=seed, max_nodes=5, max_elem_per_tensor=65536,
                          timeout_ms=10000, rank_choices=None, dtype_choices=None)
        model = kind.from_gir(drawn.make_concrete())
        model.refine_weights()
        case = TestCase(model, model.make_oracle())
    except Exception as error:
        tell(made=False, why=type(error).__name__)
        continue
    found = factory.checked_compile_and_exec(case)
    if not isinstance(found, BugReport) and case.oracle.output is not None:
        found = factory.verify_results(found, case, equal_nan=True)
    if isinstance(found, BugReport):
        given = tuple(torch.from_numpy(value) for value in case.oracle.input.values())
        status, what = second_opinion(model.torch_model.eval(), given)
        lines = [line for line in found.log.splitlines() if line.strip()]
        tell(made=True, failed=True, symptom=str(found.symptom), log=lines[-1][:300], status=status, kind=what)
    else:
        tell(made=True, failed=False)
"""
PLAIN = r"""
import random, tempfile
from pathlib import Path
from torchparity.hunting.grammar import Writer
from torchparity.programs.script import FACTORY
from torchparity.run.target import Target

folder = Path(tempfile.mkdtemp())
end = time.time() + float(sys.argv[1])
seed = int(sys.argv[2])
while time.time() < end:
    seed += 1
    place = folder / f"p{seed}.py"
    place.write_text(Writer(seed).write().text)
    try:
        subject, twin = Target(f"{place}:{FACTORY}").load(), Target(f"{place}:{FACTORY}").load()
        expected = [subject.model(*args, **kwargs) for args, kwargs in subject.calls()]
    except Exception as error:
        tell(made=False, why=type(error).__name__)
        continue
    log = ""
    try:
        torch.compiler.reset()
        compiled = torch.compile(twin.model)
        actual = [compiled(*args, **kwargs) for args, kwargs in twin.calls()]
        torch.testing.assert_close(actual, expected, equal_nan=True)
    except Exception as error:
        log = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if log:
        fresh = Target(f"{place}:{FACTORY}").load()
        status, what = second_opinion(fresh, ())
        tell(made=True, failed=True, symptom="plain", log=log[:300], status=status, kind=what)
    else:
        tell(made=True, failed=False)
"""


def started(text: str, python: str, seconds: float, seed: int, log: Path) -> subprocess.Popen[bytes]:
    """Start one of the others; its rows come into a file."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    with log.open("wb") as output, log.with_suffix(".err").open("wb") as errors:
        return subprocess.Popen(
            [python, "-c", COMMON + text, str(seconds), str(seed)], stdout=output, stderr=errors, env=environment
        )


def rows_of(log: Path) -> list[dict[str, Any]]:
    """Return what one of the others has told."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]


def alike(log: str) -> str:
    """Return what is left of an error when numbers and names are taken out: two that are alike are one bug."""
    return re.sub(r"[0-9]+|0x[0-9a-f]+|'[^']*'", "_", log)[:120]


def others_row(name: str, rows: list[dict[str, Any]], minutes: float) -> list[str]:
    """Return what one of the others has found, by its own account and by ours."""
    made = [row for row in rows if row["made"]]
    failed = [row for row in made if row["failed"]]
    real = [row for row in failed if row["status"] == "differs"]
    bugs = {(row["symptom"], row["kind"], alike(row["log"])) for row in real}
    false = sum(row["status"] == "same" for row in failed)
    unsettled = len(failed) - len(real) - false
    row = [name, len(made), f"{len(made) / minutes:.1f}", len(failed), len(bugs), false, unsettled]
    return list(map(str, row))


def ours_row(folder: Path, minutes: float) -> list[str]:
    """Return what the hunt has found: failures that are not alike, by the same measure, and root causes with a script.

    What it calls a failure is judged by itself already; false alarms among its finds are for people to see.
    """
    store = Store(folder)
    counts, finds, bugs = store.statuses(), store.finds(), store.bugs()
    store.close()
    total = counts.total()
    told = {(find.answer["kind"], *(alike(reason) for reason in find.answer["reasons"])) for find in finds}
    made = f"{len(told)}; {sum(bool(bug.script) for bug in bugs)} with a script"
    row = ["ours", total, f"{total / minutes:.1f}", counts["differs"], made, "looked into by hand", counts["error"]]
    return list(map(str, row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nnsmith", help="an interpreter that has NNSmith and torch")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(tempfile.mkdtemp(prefix="rivals-")))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(width=160)
    table = Table("who", "programs", "a minute", "failures", "distinct bugs", "false alarms", "not settled")
    for name, text, python in (("nnsmith", NNSMITH, options.nnsmith), ("plain", PLAIN, sys.executable)):
        if python is None:
            continue
        began = time.monotonic()
        log = options.out / f"{name}.jsonl"
        other = started(text, python, options.minutes * 60, options.seed, log)
        ours = options.out / f"beside-{name}"
        words = ["hunt", "--minutes", str(options.minutes), "--seed", str(options.seed), "--out", str(ours)]
        subprocess.run([sys.executable, "-m", "torchparity", *words, "--workers", "1", "-q"], check=False)
        other.wait()
        console.print(f"{name}: {(time.monotonic() - began) / 60:.1f} minutes for both")
        table.add_row(*others_row(name, rows_of(log), options.minutes))
        table.add_row(*ours_row(ours, options.minutes))
    console.print(table)


if __name__ == "__main__":
    main()
