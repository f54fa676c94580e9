"""Exact data at scale: programs of the hunt's grammar, clean and with one wrong index, mask, stride or write.

    python -m benchmarks.exact --programs 600 --dtypes float32 bfloat16 float16

Every program is judged with `--exact` against aot_eager, which is right but for bugs of AOTAutograd, and then with one
fault planted. A fault counts where it changes a bit of what the program gives, as the candidate itself shows.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torchparity.faults import plant
from torchparity.faults.plant import Planted
from torchparity.hunting.grammar import Writer
from torchparity.hunting.scope import runs
from torchparity.judge.asking import oracle_for
from torchparity.minifier.programs import quiet
from torchparity.programs.script import FACTORY
from torchparity.records import Status, Verdict
from torchparity.request import request_for
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.workers.outcome import Ending, Limits
from torchparity.workers.pool import Pool

JOB = "benchmarks.exact:programs_job"
FLOATS = ("float32", "float64", "bfloat16", "float16")
# A wrong index, a wrong mask, wrong strides, writes that are lost or go to the wrong place.
FAULTS = ("off_by_one", "integer_off_by_one", "tail", "repeated_row", "dropped_last", "transposed", "wrong_stride",
          "lost_mutation", "wrong_element", "swapped_operands")  # fmt: skip
BATCH = 10


def programs_job(payload: dict[str, Any], announce: Callable[[str], None]) -> list[dict[str, Any]]:
    """Judge programs from seeds, clean and with a fault, in the process that this is called in."""
    quiet()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in payload["seeds"]:
            announce(str(seed))
            text = text_of(seed, payload["dtype"])
            if text is not None:
                place = Path(folder) / f"p{seed}.py"
                place.write_text(text, encoding="utf-8")
                found.append({"seed": seed, "dtype": payload["dtype"], "text": text, **judged(place, seed)})
    return found


def text_of(seed: int, dtype: str) -> str | None:
    """Return a program whose floats are all of one dtype; None where eager does not take it."""
    text = Writer(seed).write().text
    for other in FLOATS:
        text = text.replace(f"torch.{other}", f"torch.{dtype}")
    return text if runs(text, backward=False) else None


def judged(place: Path, seed: int) -> dict[str, Any]:
    """Judge a program without a fault, then with the first fault that changes anything."""
    clean = verdict_on(place, "aot_eager")
    row: dict[str, Any] = {"clean": clean.status.value, "reasons": list(clean.reasons[:2]), "exact": len(clean.exact)}
    if clean.status is not Status.SAME:
        return row
    chance = random.Random(seed)
    for kind in chance.sample(FAULTS, len(FAULTS)):
        counting = plant(kind, site=None)
        verdict_on(place, counting)
        if not counting.sites:
            continue
        site = chance.randrange(len(counting.sites))
        if has_effect(place, plant(kind, site=site)):
            planted = plant(kind, site=site)
            verdict = verdict_on(place, planted)
            if planted.planted is None:
                continue  # It stands in a graph that the check had no need of.
            row |= {"fault": kind, "found": verdict.status.value, "told": list(verdict.reasons[:2])}
            return row
    return row


def loaded(place: Path) -> Subject:
    """Return a program with its inputs."""
    torch.compiler.reset()
    torch.manual_seed(0)
    return Target(f"{place}:{FACTORY}").load()


def verdict_on(place: Path, backend: Any) -> Verdict:
    """Judge a program against a backend."""
    request = request_for("check", {"backend": backend, "exact": True})
    return oracle_for(loaded(place), request).judge()


def has_effect(place: Path, planted: Planted) -> bool:
    """Tell whether a candidate with a fault gives other bits, strides or writes than one without, or raises."""
    return given_by(place, "aot_eager") != given_by(place, planted)


def given_by(place: Path, backend: Any) -> list[Any]:
    """Return what tells a program's results, and the inputs it leaves behind, from others; or what it raises."""
    subject = loaded(place)
    compiled = torch.compile(subject.model, backend=backend)
    results: list[Any] = []
    try:
        for args, kwargs in subject.calls():
            made = compiled(*args, **kwargs)
            results += [*(made if isinstance(made, tuple) else (made,)), *args]
    except Exception as error:  # noqa: BLE001  (whatever a faulty program raises is what it gives)
        return [type(error).__name__]
    return [facts_of(value) for value in results]


def facts_of(value: Any) -> Any:
    """Return what tells a result from another: its bits, but for the sign of a zero; its strides, where they matter."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    data = value.detach().resolve_conj().resolve_neg().reshape(-1).clone()
    data = data + 0.0 if data.is_floating_point() else data
    steps = [step for size, step in zip(value.shape, value.stride(), strict=True) if size > 1 and value.numel()]
    return value.shape, steps, data.view(torch.uint8).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=600)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--seed", type=int, default=900_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    console = Console(width=200)
    rows: list[dict[str, Any]] = []
    lost = 0
    with Pool(workers=options.workers, preload=("torchparity.hunting.jobs",)) as pool:
        asked = {}
        for dtype in options.dtypes:
            for first in range(options.seed, options.seed + options.programs, BATCH):
                payload = {"seeds": list(range(first, first + BATCH)), "dtype": dtype}
                asked[pool.submit(JOB, payload, limits=Limits(seconds=600.0))] = payload
        for future in as_completed(asked):
            outcome = future.result()
            if outcome.ending is not Ending.RETURNED:
                lost += 1
                told = f"{outcome.ending.value} at {outcome.phase}: {outcome.error} {outcome.output[-300:]}"
                console.print(told, markup=False)
                continue
            rows += outcome.value
            for row in outcome.value:
                missed = row.get("found", "differs") != "differs"
                if row["clean"] == "differs" or missed:
                    told = f"clean {row['clean']}; {row.get('fault', '')} {row.get('found', '')}"
                    console.print(f"{row['seed']} {row['dtype']}: {told} {row['reasons']} {row.get('told', '')}")
                if options.out is not None:
                    with options.out.open("a", encoding="utf-8") as log:
                        log.write(json.dumps(row) + "\n")
    table = Table("dtype", "programs", "clean same", "differs", "unknown", "faults with an effect", "found", "unknown")
    for dtype in options.dtypes:
        own = [row for row in rows if row["dtype"] == dtype]
        clean = Counter(row["clean"] for row in own)
        found = Counter(row["found"] for row in own if "found" in row)
        counts = [len(own), clean["same"], clean["differs"], clean["unknown"], found.total(), found["differs"]]
        table.add_row(dtype, *map(str, counts), str(found["unknown"]))
    console.print(table)
    console.print(f"batches that were lost: {lost}")


if __name__ == "__main__":
    main()
