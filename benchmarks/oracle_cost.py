"""One tool, one process: the time and the peak memory of checking a model of 100 M parameters."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from pathlib import Path

import torch
import torch._dynamo  # Before the clock: exporting, which the stock tool wants done beforehand, imports it as well.

from benchmarks.models import Transformer


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def watch(peak: list[int]) -> None:
    while True:
        peak[0] = max(peak[0], resident())
        time.sleep(0.01)


def main(tool: str) -> None:
    logging.disable(logging.ERROR)
    torch.manual_seed(0)
    model = Transformer(words=20_000, width=768, layers=12, dropout=0.0, heads=12).train()
    tokens = torch.randint(0, 20_000, (2, 128))
    if tool == "stock":
        model = torch._dynamo.export(model)(tokens).graph_module
    peak = [0]
    threading.Thread(target=watch, args=(peak,), daemon=True).start()
    started = time.perf_counter()
    if tool == "torchparity":
        import torchparity

        said = torchparity.check(model, (tokens,), backend="aot_eager", train=True).status.value
    else:
        from torch._dynamo.debug_utils import same_two_models

        compiled = torch.compile(model, backend="aot_eager")
        said = [same_two_models(model, model, [tokens]), same_two_models(model, compiled, [tokens])]
    seconds = time.perf_counter() - started
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = {"seconds": seconds, "peak_mib": peak[0] / 2**20, "parameters": parameters, "said": said}
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1])
