"""The judge of a `repro.py`, which runs with torch alone: the oracle itself, on what the script makes.

What stands here, and all that it uses, is printed into every script.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchparity.compare.judgement import Tolerance
from torchparity.errors import ParityError
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import Settings
from torchparity.records.verdict import Kind, Status, Verdict
from torchparity.request import PROJECTION
from torchparity.run.plan import Plan
from torchparity.run.subject import Subject

ROWS = 12


class Scripted:
    """The candidate of a script: what its own function compiles."""

    def __init__(self, compile_model: Callable[..., Any], asked: Mapping[str, Any]) -> None:
        self.compile_model = compile_model
        self.asked = asked
        self.name = str(asked["backend"])
        self.traces = bool(asked["traces"])
        self.ignored = frozenset(Kind(name) for name in asked["ignored"])
        self.draws_its_own = True
        self.active = contextlib.nullcontext

    def fitting(self, plan: Plan) -> Scripted:
        """Return this: the script was written for its plan."""
        return self

    def with_eager_random(self) -> Scripted:
        """Return this: where the graph draws random numbers, its settings say so."""
        return self

    def unrecorded(self) -> Scripted:
        """Return this: a script compiles in one way."""
        return self

    def control(self) -> Scripted:
        """Return one that is right."""
        return Scripted(lambda model: torch.compile(model, backend="aot_eager"), self.asked)

    def build(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Compile as the script does."""
        torch.compiler.reset()
        compiled: Callable[..., Any] = self.compile_model(model)
        return compiled

    def release(self) -> None:
        """Let the compiler forget."""
        torch.compiler.reset()

    def facts(self) -> Mapping[str, Any]:
        """Return the name, and how it is compiled."""
        return {"backend": self.name, **{key: self.asked.get(key) for key in ("mode", "options", "config")}}


def main(script: Mapping[str, Any]) -> int:
    """Read the inputs, judge, and return the exit code; `script` is what the script defines."""
    parser = argparse.ArgumentParser(description="0 same, 1 differs, 2 usage, 125 unknown")
    parser.parse_args()
    missing = [device for device in set(script["DEVICES"]) if not script["available"](device)]
    if missing:
        print(f"UNKNOWN: this machine has no {', '.join(missing)}", file=sys.stderr)
        return 125
    here = pathlib.Path(script["__file__"]).resolve().parent
    try:
        blobs = script["read_blobs"](here / "tensors.safetensors", len(script["DEVICES"]))
    except (OSError, ValueError, struct.error) as error:
        print(f"error: the inputs cannot be read: {error}", file=sys.stderr)
        print("hint: tensors.safetensors belongs beside repro.py; copy the whole folder", file=sys.stderr)
        return 2
    try:
        verdict = judged(script, script["Reader"](blobs, script["DEVICES"]))
        code = report(verdict, script["ASKED"]["inputs"])
        if verdict.failure is not None and verdict.failure.stage == Kind.CRASHES.value:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # Whoever leaves in good order waits for a kernel that never ends.
        return code
    except ImportError as error:
        print(f"UNKNOWN: the compiler cannot be had: {error!r}")
    except ParityError as error:
        print(f"UNKNOWN: {error}")
    except Exception:  # noqa: BLE001 - whatever it is, it is no verdict, and is shown
        traceback.print_exc()
        print("UNKNOWN: the judgement itself failed")
    return 125


def judged(script: Mapping[str, Any], read: Any) -> Verdict:
    """Ask the oracle about what a script makes."""
    asked = script["ASKED"]
    model, inputs, random = script["make_model"](read), script["make_inputs"](read), script["random_states"](read)
    script["compile_model"](model)  # What cannot be imported shows here; compilation happens at the first call.
    plan = Plan(
        backward=asked["train"] if asked["backward"] is None else asked["backward"],
        differentiates=not (asked["no_grad"] or asked["inference_mode"]),
        inference=asked["inference_mode"],
        autocast=getattr(torch, asked["autocast"]) if asked["autocast"] else None,
        loss=asked["loss"] if isinstance(asked["loss"], str) else PROJECTION,
        seed=asked["seed"],
        random=random,
    )
    ignored = frozenset(Kind(name) for name in asked["ignore"])
    settings = Settings(
        tolerance=Tolerance(relative=asked["tolerance"], ignore=ignored),
        noise_runs=asked["noise_runs"],
        candidate_runs=asked["candidate_runs"],
        reference=asked["reference"],
        allow_eager=asked["allow_eager"],
        exact=asked["exact"],
    )
    subject = Subject(model, tuple(inputs), name=asked["name"])
    return Oracle(subject, plan, Scripted(script["compile_model"], asked), settings).judge()


def report(verdict: Verdict, names: list[str]) -> int:
    """Print the leaves, worst first, and the answer; return the exit code."""
    if verdict.failure is not None and verdict.failure.traceback:
        print(verdict.failure.traceback, file=sys.stderr)
    print(
        f"{'leaf':24} {'kind':10} {'error':>12} {'allowed':>12} {'score':>10}   (differs above {verdict.threshold:g})"
    )
    for leaf in verdict.leaves[:ROWS]:
        path = leaf.path
        for number, name in enumerate(names):
            path = path.replace(f"args[{number}]", name)
        score = max(leaf.score, leaf.aggregate_score)
        print(f"{path:24} {leaf.kind or 'ok':10} {leaf.candidate_error:12.4g} {leaf.allowed:12.4g} {score:10.3g}")
    wrong = sum(leaf.status is Status.DIFFERS for leaf in verdict.leaves)
    told = f"{wrong} of {len(verdict.leaves)} leaves" if wrong else "; ".join(verdict.reasons)
    print(f"{verdict.status.value.upper()}: {told}")
    return verdict.exit_code
