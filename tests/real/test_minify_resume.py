"""A minification that is killed at any moment goes on where it was, and ends where it would have ended."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time

import pytest
import torch

import torchparity
from torchparity import read_bundle, resume_minify

# Interesting as long as both are there; slow enough to be killed in the middle of.
CHECK = "sleep 0.15; grep -q 'sin(' {}/repro.py && grep -q 'cos(' {}/repro.py"
KILLS = 20


class Chain(torch.nn.Module):
    def forward(self, x):
        for place in range(60):
            x = torch.sin(x) if place == 17 else torch.cos(x) if place == 44 else torch.relu(x) + place
        return x


@pytest.fixture(scope="module")
def case():
    (case, *_) = torchparity.capture(Chain(), (torch.randn(4, 6),), backend="aot_eager")
    return case


def begin(case, folder, workers):
    torchparity.minify(case, out=folder, check=CHECK, workers=workers)


def resume(folder, workers):
    resume_minify(folder, check=CHECK, workers=workers)


def events(folder, name):
    text = (folder / "log.jsonl").read_text()
    entries = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [entry for entry in entries if entry["event"] == name]


def wait_for_more(folder, process):
    """Wait until the process has something in hand: a folder begun, a line added to the log."""
    before = sum(path.stat().st_size for path in folder.glob("log.jsonl"))
    while process.is_alive() and sum(path.stat().st_size for path in folder.glob("log.jsonl")) == before:
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_random_moments_it_ends_at_the_same_result_and_repeats_no_query(case, tmp_path, workers):
    whole = tmp_path / "whole"
    straight = torchparity.minify(case, out=whole, check=CHECK, workers=workers)
    assert straight.compute_nodes == 2

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torchparity.verbs.minify"])
    folder = tmp_path / "killed"
    moments = random.Random(workers)
    kills = 0
    while kills < KILLS:
        begun = (folder / "log.jsonl").exists() and events(folder, "start")
        target, arguments = (resume, (folder, workers)) if begun else (begin, (case, folder, workers))
        process = context.Process(target=target, args=arguments)
        process.start()
        wait_for_more(folder, process)
        process.join(timeout=moments.uniform(0.0, 0.5))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        if begun and events(folder, "ended"):
            break
    finished = resume_minify(folder, check=CHECK, workers=workers)

    assert kills > KILLS // 4
    assert finished.case.digest == straight.case.digest
    answered = [entry["key"] for entry in events(folder, "answered")]
    assert len(answered) == len(set(answered))
    if workers == 1:
        assert set(answered) == {entry["key"] for entry in events(whole, "answered")}
    assert read_bundle(folder).digest == straight.case.digest
