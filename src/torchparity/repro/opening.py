"""The only opener of cases: runs the script of a case, and hands out fresh models, graphs and inputs."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.fx import GraphModule

from torchparity.compilers.recipe import Recipe, recipe_of
from torchparity.compilers.written import SourceBackend
from torchparity.errors import ResourceError
from torchparity.repro.case import Case
from torchparity.repro.names import with_lines
from torchparity.repro.script import given_names, load_script, upper_half
from torchparity.repro.source import SCRIPT
from torchparity.request import PROJECTION, Request
from torchparity.run.plan import Plan, float_dtype
from torchparity.run.state import RandomState

# torch.fx patches modules while it traces, so one thread at a time may.
TRACING = threading.Lock()


@dataclass(frozen=True)
class Opened:
    """A case whose script has been run: it makes fresh models and inputs."""

    case: Case
    module: ModuleType

    def make(self) -> tuple[torch.nn.Module, list[Any], dict[str, torch.Tensor]]:
        """Return a fresh model, its inputs, and the states of random generators."""
        blobs = {number: storage.data for number, storage in enumerate(self.case.storages)}
        read = self.module.Reader(blobs, self.module.DEVICES)
        return self.module.make_model(read), self.module.make_inputs(read), self.module.random_states(read)

    def graph(self, model: torch.nn.Module) -> GraphModule:
        """Return a model of the script as the graph that it was printed from, with the user's lines."""
        holder = torch.nn.Module()
        holder.model = model
        with TRACING:
            traced: GraphModule = self.module.as_graphs(holder).model
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                node.type = None  # What the printed source said of it.
        traced.recompile()
        return with_lines(traced, self.case.origin.get("nodes") or ())

    def input_names(self) -> list[str]:
        """Return what the graph calls the inputs that are handed to it, in order."""
        return given_names(self.case)

    def request(self) -> Request:
        """Return what the case asks for, its backend imported."""
        backend = self.case.request.backend
        if not isinstance(backend, SourceBackend):
            return self.case.request
        try:
            return replace(self.case.request, backend=backend.resolve())
        except (ImportError, AttributeError) as error:
            raise ResourceError(
                f"the compiler of the case cannot be had here: {error}",
                hint=f"see to it that these work: {'; '.join(backend.imports)}",
            ) from None

    def recipe(self) -> Recipe:
        """Return how the case is compiled, or refuse what this machine cannot do."""
        return recipe_of(self.request())

    def plan(self, random: dict[str, torch.Tensor], *, backward: bool | None = None) -> Plan:
        """Return how the case is run."""
        request = self.case.request
        return Plan(
            backward=request.gradients if backward is None else backward,
            differentiates=request.differentiates,
            inference=request.inference_mode,
            autocast=float_dtype(request.autocast),
            random=random,
            seed=request.seed,
            loss=request.loss if isinstance(request.loss, str) else PROJECTION,
        )

    @contextlib.contextmanager
    def conditions(self, random: dict[str, torch.Tensor]) -> Iterator[None]:
        """Hold the random numbers and the autocast that the case was captured under."""
        before = RandomState()
        before.with_torch(random).restore()
        dtype = float_dtype(self.case.request.autocast)
        device = torch.device(self.case.device).type
        try:
            with torch.autocast(device, dtype=dtype) if dtype is not None else contextlib.nullcontext():
                yield
        finally:
            before.restore()


def open_case(case: Case, folder: Path | None = None) -> Opened:
    """Run the script of a case: the one in its bundle, where there is one."""
    text = (folder / SCRIPT).read_text(encoding="utf-8") if folder is not None else upper_half(case)
    # A name of its own, so that no two cases share an entry of linecache.
    place = str(folder / SCRIPT) if folder is not None else f"<case {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    opened = Opened(case, load_script(text, place, dict(case.files)))
    missing = sorted({storage.device for storage in case.storages if not opened.module.available(storage.device)})
    if missing:
        raise ResourceError(
            f"the case needs {', '.join(missing)}, which this machine does not have",
            hint="run it where there is one",
        )
    return opened
