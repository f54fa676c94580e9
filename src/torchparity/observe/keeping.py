"""Graphs kept while a model is checked: each with what its backend made of it, so that it can be judged by itself.

The check has compiled them already. Judging one of them runs it, and compiles nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from torchparity import torchapi
from torchparity.compilers.candidates import Ready, copy_on_same_tensors
from torchparity.compilers.recipe import Recipe
from torchparity.errors import CaseError, ParityError
from torchparity.graphs.recording import copied_together
from torchparity.judge.cases import renamed
from torchparity.judge.oracle import Oracle
from torchparity.judge.reasons import candidate_raises
from torchparity.judge.script import write_bundle
from torchparity.judge.settings import settings_of
from torchparity.observe.capture import DYNAMO, Ambient, observed_case
from torchparity.records import Failure, ProgressCallback, Status, Verdict
from torchparity.repro.case import Case, WrittenGraph, write_graph
from torchparity.repro.names import input_names
from torchparity.request import Request
from torchparity.run.plan import Plan, float_dtype
from torchparity.run.step import describe_failure
from torchparity.run.subject import Subject

# Bytes of inputs from which on a graph is not looked at before it is known to fail: there may be no room for two.
LITTLE = 1 << 28


@dataclass
class KeptGraph:
    """One graph of Dynamo's: as it was, what the backend made of it, and what it was first called with."""

    name: str
    eager: GraphModule
    written: WrittenGraph | CaseError
    inputs: tuple[Any, ...]
    ambient: Ambient
    origin: dict[str, Any]
    compiled: Callable[..., Any] | None = None
    failure: Failure | None = None

    def case(self, request: Request) -> Case:
        """Return it as a case, or refuse."""
        if isinstance(self.written, CaseError):
            raise self.written
        return observed_case(
            self.written,
            list(copied_together(self.inputs)),
            name=self.name,
            level=DYNAMO,
            direction="both",
            request=request,
            origin=self.origin,
            ambient=self.ambient,
        )

    def ahead(self, request: Request, folder: Path) -> Path | None:
        """Write it down before it is compiled, where that costs little."""
        held = {value.untyped_storage().data_ptr(): value for value in self.inputs if isinstance(value, torch.Tensor)}
        if sum(value.untyped_storage().nbytes() for value in held.values()) > LITTLE:
            return None
        return write_bundle(self.case(request), folder / self.name)

    def judge(self, request: Request, recipe: Recipe, *, progress: ProgressCallback | None = None) -> Verdict:
        """Hold what the backend made of it against the graph: as the backend raised, or by the numbers."""
        ready = Ready(recipe, self.inputs, self.compiled, recipe.config)
        if self.failure is not None:
            reason = candidate_raises(self.failure)
            return Verdict(
                status=Status.DIFFERS, reasons=(reason,), recipe=ready.facts(), subject=self.name, failure=self.failure
            )
        plan = Plan(
            backward=self.ambient.gradients and request.backward is not False,
            differentiates=self.ambient.gradients,
            inference=self.ambient.inference,
            autocast=float_dtype(self.ambient.autocast),
            random=self.ambient.random,
            seed=request.seed,
        )
        subject = Subject(self.eager, self.inputs, name=self.name)
        verdict = Oracle(subject, plan, ready, settings_of(request, progress=progress)).judge()
        return renamed(verdict, list(input_names(self.eager).values()))


class Keeper:
    """Hears every compilation while it is active, and keeps its graphs. What it cannot keep is a note.

    `ahead` hears of each graph before it is compiled, with what Dynamo was given for it: that may still change.
    """

    def __init__(self, request: Request, *, ahead: Callable[[KeptGraph], None] | None = None) -> None:
        self.request, self.ahead = request, ahead
        self.graphs: list[KeptGraph] = []
        self.notes: list[str] = []
        self._number = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Listen."""
        with torchapi.heard_compilations(self._hear):
            yield

    def _hear(self, graph_module: GraphModule, inputs: list[Any], compile_graph: Callable[[], Any]) -> Any:
        self._number += 1
        number = self._number
        kept = self._attempt(lambda: self._kept(graph_module, inputs, number))
        if kept is not None and self.ahead is not None:
            with contextlib.suppress(ParityError), torchapi.no_dispatch_modes():
                self.ahead(kept)
        try:
            compiled = compile_graph()
        except Exception as error:
            if kept is not None:
                kept.failure = describe_failure(error, "compile")
                self.graphs.append(kept)
            raise
        if kept is None:
            return compiled
        called = False

        def first(*args: Any) -> Any:
            nonlocal called
            if not called:
                called = True
                self._attempt(lambda: self._keep(kept, compiled, list(args)))
            return compiled(*args)

        return first

    def _kept(self, graph_module: GraphModule, inputs: list[Any], number: int) -> KeptGraph:
        written: WrittenGraph | CaseError
        try:
            written = write_graph(graph_module, inputs)
        except CaseError as error:
            written = error
        with torchapi.no_dispatch_modes():
            eager = copy_on_same_tensors(graph_module)
        origin = {"graph": number, "ends": torchapi.end_of_graph(graph_module)}
        return KeptGraph(
            name=f"{number:03d}_{DYNAMO}",
            eager=eager,
            written=written,
            inputs=tuple(inputs),
            ambient=Ambient.around(inputs),
            origin=origin,
        )

    def _keep(self, kept: KeptGraph, compiled: Callable[..., Any], inputs: list[Any]) -> None:
        with torchapi.no_dispatch_modes():
            kept.inputs, kept.ambient, kept.compiled = copied_together(inputs), Ambient.around(inputs), compiled
        self.graphs.append(kept)

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """Do something for ourselves alone: the check goes on whatever comes of it."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - it is a note, and the graphs are captured apart
            told = error.message if isinstance(error, ParityError) else f"{type(error).__name__}: {error}"
            self.notes.append(f"graph {self._number} was not kept: {told}")
            return None
