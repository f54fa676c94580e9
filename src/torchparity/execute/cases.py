"""From a case to a verdict: the bundle's own script makes the model, the oracle judges it."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.fx import GraphModule

from torchparity.compare.judgement import Tolerance
from torchparity.errors import ResourceError
from torchparity.execute.ground import CANDIDATE_RUNS, NOISE_RUNS, Settings
from torchparity.execute.oracle import Oracle
from torchparity.records import ProgressCallback, Verdict
from torchparity.repro.bundle import read_bundle
from torchparity.repro.case import Case, SourceBackend
from torchparity.repro.script import load_script, write_script
from torchparity.repro.source import SCRIPT, with_lines
from torchparity.run.step import Plan
from torchparity.run.subject import Subject

# torch.fx patches modules while it traces, so one thread at a time may.
TRACING = threading.Lock()


@dataclass(frozen=True)
class Loaded:
    """A case whose script has been run: it makes fresh models and inputs."""

    case: Case
    module: ModuleType

    def make(self) -> tuple[torch.nn.Module, list[Any], dict[str, torch.Tensor]]:
        """Return a fresh model, its inputs, and the states of random generators."""
        read = self.module.Reader({number: storage.data for number, storage in enumerate(self.case.storages)})
        return self.module.make_model(read), self.module.make_inputs(read), self.module.random_states(read)

    def graph_of(self, model: torch.nn.Module) -> GraphModule:
        """Return a model of the script as the graph that it was printed from."""
        holder = torch.nn.Module()
        holder.model = model
        with TRACING:
            traced: GraphModule = self.module.as_graphs(holder).model
        return with_lines(traced, self.case.origin.get("nodes") or ())

    def input_names(self) -> list[str]:
        """Return what the graph calls the inputs that are handed to it, in order."""
        derived = {name for name, value in self.case.symbols.items() if value.expression}
        return [name for name, _ in self.case.inputs if name not in derived]

    def candidate(self) -> Callable[..., Any]:
        """Return the model, compiled as the script compiles it."""
        compiled: Callable[..., Any] = self.module.compile_model(self.make()[0])
        return compiled


def load_case(case: Case, path: Path | None = None) -> Loaded:
    """Run the script of a case (the one in the bundle, where there is one)."""
    script = write_script(case)
    # A name of its own, so that no two cases share an entry of linecache.
    place = str(path / SCRIPT) if path is not None else f"<case {hashlib.sha256(script.encode()).hexdigest()[:12]}>"
    text = script if path is None else (path / SCRIPT).read_text(encoding="utf-8")
    loaded = Loaded(case, load_script(text, place, dict(case.files)))
    missing = sorted({storage.device for storage in case.storages if not loaded.module.available(storage.device)})
    if missing:
        raise ResourceError(
            f"the case needs {', '.join(missing)}, which this machine does not have",
            hint="run it where there is one",
        )
    return loaded


def judge_case(
    case: Case,
    *,
    path: Path | None = None,
    progress: ProgressCallback | None = None,
    noise_runs: int = NOISE_RUNS,
    candidate_runs: int = CANDIDATE_RUNS,
    tolerance: Tolerance | None = None,
) -> Verdict:
    """Judge a case in this process."""
    loaded = load_case(case, path)
    model, inputs, random = loaded.make()
    plan = Plan(
        backward=case.backward,
        autocast=getattr(torch, case.autocast[1]) if case.autocast else None,
        random=random,
    )
    recipe = case.recipe
    if isinstance(recipe.backend, SourceBackend):
        try:
            recipe = replace(recipe, backend=recipe.backend.resolve())
        except (ImportError, AttributeError) as error:
            raise ResourceError(
                f"the compiler of the case cannot be had here: {error}",
                hint=f"see to it that these work: {'; '.join(case.recipe.backend_source()[0])}",
            ) from None
    settings = Settings(
        tolerance=tolerance or Tolerance(),
        noise_runs=noise_runs,
        candidate_runs=candidate_runs,
        progress=progress,
    )
    subject = Subject(model, tuple(inputs), name=case.name)
    verdict = Oracle(subject, plan, recipe.validated(), settings).judge()
    return renamed(verdict, loaded.input_names())


def renamed(verdict: Verdict, names: list[str]) -> Verdict:
    """Return a verdict that calls inputs by their names in the graph."""

    def rename(text: str) -> str:
        return re.sub(r"\bargs\[(\d+)\]", lambda found: names[int(found[1])], text)

    leaves = tuple(replace(leaf, path=rename(leaf.path)) for leaf in verdict.leaves)
    return replace(verdict, leaves=leaves, reasons=tuple(rename(reason) for reason in verdict.reasons))


def judge_bundle(folder: Path, *, progress: ProgressCallback | None = None) -> Verdict:
    """Read a bundle and judge it in this process, with its own `repro.py`."""
    return judge_case(read_bundle(folder), path=folder, progress=progress)
