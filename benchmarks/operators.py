"""PyTorch's operator database against a backend: one sample of every operator and dtype, forward and gradients.

    python -m benchmarks.operators --dtypes float32 bfloat16 --backend inductor --minutes 30

Every sample is judged in a worker. What is not SAME is printed with its reason, to be looked into.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from collections import Counter
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool

JOB = "benchmarks.operators:sample_job"
PRELOAD = ("torchparity.verbs.jobs",)
DTYPES = ("float32", "bfloat16", "float16", "int64", "bool")
SAMPLE_SECONDS = 240.0
BATCH = 6


def database() -> dict[str, Any]:
    """Return the operators by name and variant."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{entry.name}{'.' + entry.variant_test_name if entry.variant_test_name else ''}": entry for entry in op_db}


def sample_job(payload: dict[str, Any], announce: Any) -> list[dict[str, Any]]:
    """Judge one sample of each of some operators, in the process that this is called in."""
    known = database()
    found = []
    for name in payload["names"]:
        announce(name)
        found.append({"name": name, **judged(known[name], payload)})
    return found


def judged(entry: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Judge the first samples of an operator until one tells something."""
    import torchparity

    warnings.filterwarnings("ignore")
    dtype = getattr(torch, payload["dtype"])
    device = payload["device"]
    if dtype not in entry.supported_dtypes(device):
        return {"status": "not supported"}
    gradients = dtype.is_floating_point and entry.supports_autograd and dtype in entry.supported_backward_dtypes(device)
    torch.manual_seed(0)
    try:
        samples = list(entry.sample_inputs(device, dtype, requires_grad=gradients))
    except Exception as error:  # noqa: BLE001 - the database may want what this machine has not
        return {"status": "no sample", "reasons": [f"{type(error).__name__}: {error}"]}
    samples = [sample for sample in samples if holds_elements(sample)] or samples
    if not samples:
        return {"status": "no sample", "reasons": []}
    sample = samples[min(payload["sample"], len(samples) - 1)]
    began = time.perf_counter()
    try:
        verdict = torchparity.check(
            Operator(entry), (sample.input, *sample.args), dict(sample.kwargs), backend=payload["backend"]
        )
    except Exception as error:  # noqa: BLE001 - an error of ours is a line of the table
        return {"status": "error", "reasons": [f"{type(error).__name__}: {str(error)[:300]}"]}
    return {
        "status": verdict.status.value,
        "severity": verdict.severity.value,
        "kind": verdict.kind,
        "reasons": [reason[:300] for reason in verdict.reasons],
        "seconds": time.perf_counter() - began,
    }


def holds_elements(sample: Any) -> bool:
    """Tell whether a sample's input has anything to compare."""
    value = sample.input[0] if isinstance(sample.input, list | tuple) and sample.input else sample.input
    return isinstance(value, torch.Tensor) and value.numel() > 1


class Operator:
    """An entry of the database as a function."""

    def __init__(self, entry: Any) -> None:
        self.op = entry.op
        self.__name__ = entry.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.op(*args, **kwargs)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Judge everything that there is time for."""
    names = [name for name in database() if not options.only or any(word in name for word in options.only)]
    random.Random(options.seed).shuffle(names)
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + options.minutes * 60
    log = options.out.open("w") if options.out is not None else None
    with Pool(workers=options.workers, preload=PRELOAD) as pool:
        for dtype in options.dtypes:
            pending: dict[Future[Outcome], list[str]] = {}

            def submit(names: list[str], dtype: str = dtype, pending: Any = pending) -> None:
                payload = {"names": names, "dtype": dtype, "device": options.device}
                payload |= {"backend": options.backend, "sample": options.sample}
                pending[pool.submit(JOB, payload, limits=Limits(seconds=SAMPLE_SECONDS))] = names

            for place in range(0, len(names), BATCH):
                submit(names[place : place + BATCH])
            while pending and time.monotonic() < deadline:
                done = next(iter(as_completed(list(pending))))
                asked, outcome = pending.pop(done), done.result()
                if outcome.ending is Ending.RETURNED:
                    answers = outcome.value
                elif len(asked) > 1:  # One of them took the process along: each is asked by itself.
                    for name in asked:
                        submit([name])
                    continue
                else:
                    how = [f"{outcome.ending.value} {outcome.signal or ''}".strip(), outcome.output[-200:]]
                    answers = [{"name": asked[0], "status": "died", "reasons": how}]
                for answer in answers:
                    rows.append({"dtype": dtype, **answer})
                    if log is not None:
                        log.write(json.dumps(rows[-1]) + "\n")
                        log.flush()
            for future in pending:
                future.cancel()
    return rows


def report(rows: list[dict[str, Any]], console: Console) -> None:
    """Print how many of each, and every line that is not the same."""
    table = Table("dtype", "same", "differs", "unknown", "died", "error", "not judged")
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        counts = Counter(row["status"] for row in rows if row["dtype"] == dtype)
        words = ("same", "differs", "unknown", "died", "error")
        rest = sum(counts.values()) - sum(counts[word] for word in words)
        table.add_row(dtype, *(str(counts[word]) for word in words), str(rest))
    for row in sorted(rows, key=lambda row: (row["status"], row["name"])):
        if row["status"] in ("differs", "unknown", "died", "error"):
            told = "; ".join(row.get("reasons", ())[:2])
            console.print(
                f"{row['status']:8} {row['dtype']:9} {row['name']:40} {row.get('severity', ''):10} {told}",
                markup=False,
                highlight=False,
            )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report(run(options), Console(width=240))


if __name__ == "__main__":
    main()
