"""`python -m benchmarks.fleet`: clean models that we did not write, under the real compiler. Nothing may differ.

Tiny models of transformers, timm and torchvision, made from their configurations with random weights, nothing
downloaded: float32 and bfloat16, eval and train. On a GPU, with the modes that record and tune:

    python -m benchmarks.fleet --device cuda --dtypes float32 bfloat16 float16 --workers 12 \
        --modes default reduce-overhead max-autotune --only Llama Bert T5 ViT resnet18 --out fleet.jsonl

What the file of `--out` holds is not asked again: a run that was cut off is taken up by the same command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import time
import warnings
from collections import Counter
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from rich.console import Console

import torchparity
from torchparity.fleet import zoo
from torchparity.workers.outcome import Ending, Limits
from torchparity.workers.pool import Pool

JOB = "benchmarks.fleet:model_job"
PRELOAD = ("torchparity.verbs.jobs",)

# Kind -> the factory that makes its models, and their names.
MAKERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "transformers": ("transformers_model", (*zoo.TRANSFORMERS, *zoo.VISION, *zoo.SOUND)),
    "timm": ("timm_model", zoo.TIMM),
    "torchvision": ("torchvision_model", zoo.TORCHVISION),
}


def model_job(payload: dict[str, Any], announce: Any) -> dict[str, Any]:
    """Check one model in one way, in the process that this is called in."""
    warnings.filterwarnings("ignore")
    subject = torchparity.Target(
        f"{zoo.__name__}:{MAKERS[payload['kind']][0]}",
        device=payload["device"],
        dtype=payload["dtype"],
        parameters={"name": payload["name"]},
    ).load()
    verdict = torchparity.check(subject, backend=payload["backend"], train=payload["train"], mode=payload["mode"])
    return {
        "status": verdict.status.value,
        "severity": verdict.severity.value,
        "score": max((max(leaf.score, leaf.aggregate_score) for leaf in verdict.leaves), default=0.0),
        "seconds": round(verdict.seconds, 1),
        "reasons": list(verdict.reasons[:3]),
    }


def chosen(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return every model in every way that was asked for."""
    found = [
        {"kind": kind, "name": name, "dtype": dtype, "train": train, "mode": mode}
        | {"backend": options.backend, "device": options.device}
        for mode in options.modes
        for kind in options.kinds
        for name in MAKERS[kind][1]
        for dtype in options.dtypes
        for train in (False, True)
        if not options.only or name in options.only
    ]
    random.Random(options.seed).shuffle(found)  # So that what there is time for is some of everything.
    known = told_before(options.out)
    return [asked for asked in found if title(asked) not in known]


def title(asked: dict[str, Any]) -> str:
    way = "train" if asked["train"] else "eval"
    return f"{asked['kind']} {asked['name']} {asked['dtype']} {way} {asked['mode']}"


def told_before(log: Path | None) -> set[str]:
    """Return the titles of what `log` holds; a last line that was cut off counts for nothing."""
    known = set()
    for line in log.read_text().splitlines() if log is not None and log.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            known.add(json.loads(line)["model"])
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--kinds", nargs="*", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--modes", nargs="*", default=["default"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    console = Console(width=200)
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + 60 * options.minutes
    with Pool(workers=options.workers, preload=PRELOAD) as pool:
        limits = Limits(seconds=options.timeout)
        pending = {pool.submit(JOB, payload, limits=limits): payload for payload in chosen(options)}
        for future in as_completed(pending):
            asked, outcome = pending[future], future.result()
            row = outcome.value
            if outcome.ending is not Ending.RETURNED:
                row = {"status": outcome.ending.value, "reasons": [str(outcome.error)[-300:]]}
            counts[row["status"]] += 1
            numbers = f"{row.get('score', 0.0):8.2f} {row.get('seconds', 0.0):6.1f} s"
            told = "" if row["status"] == "same" else "; ".join(row["reasons"])
            console.print(f"{row['status']:8} {title(asked):50} {numbers}  {told}", highlight=False, markup=False)
            if options.out is not None:
                with options.out.open("a") as log:
                    log.write(json.dumps({"model": title(asked), **row}) + "\n")
            if time.monotonic() > deadline:
                console.print(f"the time is over; {len(pending) - counts.total()} were not asked")
                for left in pending:
                    left.cancel()
                break
    console.print(", ".join(f"{count} {status}" for status, count in counts.most_common()))


if __name__ == "__main__":
    main()
