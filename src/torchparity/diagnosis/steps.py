"""What a worker does for `blame`: judge a bundle with another backend, other settings, or steps left out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.passes.split_module import split_module

from torchparity import torchapi
from torchparity.compilers.engines import graph_backend
from torchparity.compilers.written import SourceBackend
from torchparity.diagnosis.generated import writing_kernels
from torchparity.diagnosis.switches import turned
from torchparity.judge.cases import judge_case
from torchparity.judge.isolated import Announce, answer
from torchparity.records import ProgressCallback, Verdict
from torchparity.repro.bundle import read_bundle
from torchparity.repro.names import operation_name

JOB = "torchparity.diagnosis.steps:trial_job"


def trial_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge a bundle under the changes of a trial; answer with the verdict and the steps that were met.

    `backend` and `options` replace those of the bundle, `config` wins over its settings; `disabled` are steps to leave
    out; `interpret` runs inductor's graphs instead of the code it would write; `whole` are operators that AOTAutograd
    does not take apart; `eager` are operations that are not given to the backend. Steps go to a file as they are met: a
    crash loses none.
    """
    folder = Path(payload["folder"])
    case = read_bundle(folder)
    request = case.request
    if payload.get("backend"):
        request = replace(request, backend=payload["backend"], mode=None, options={})
    if payload.get("options") is not None:
        request = replace(request, options=payload["options"])
    if payload.get("config"):
        request = turned(request, payload["config"])
    if payload.get("eager"):
        request = replace(request, backend=without(request.backend, set(payload["eager"]), request.options))
    disabled = {(stage, label, number) for stage, label, number in payload.get("disabled", ())}
    met = Written(Path(payload["steps"]))

    def judge(tell: ProgressCallback) -> Verdict:
        graphs = torchapi.inductor.graphs_run_eagerly() if payload.get("interpret") else contextlib.nullcontext()
        with (
            torchapi.inductor.watched_steps(disabled, met),
            torchapi.inductor.traced_whole(payload.get("whole", ())),
            writing_kernels(kernels_beside(met.place), folder, case.origin.get("nodes") or ()),
            graphs,
        ):
            return judge_case(replace(case, request=request), path=folder, progress=tell)

    return answer(judge, announce)


class Written(list[tuple[str, str, int]]):
    """A list of steps that is written to a file, one line for each, as it grows."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.place = path
        self.file = path.open("w", encoding="utf-8", buffering=1)

    def append(self, step: tuple[str, str, int]) -> None:
        """Keep a step, and write it down at once."""
        super().append(step)
        self.file.write(json.dumps(step) + "\n")


def kernels_beside(steps: Path) -> Path:
    """Return where the kernels of a trial stand, beside its steps."""
    return steps.with_suffix(".kernels")


def read_steps(path: Path) -> list[tuple[str, str, int]]:
    """Return the steps that were written to a file."""
    if not path.exists():
        return []
    steps = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(stage, label, number) for stage, label, number in steps]


def without(backend: Any, operations: set[str], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a backend that runs some operations eagerly, and gives the rest, in pieces, to another backend.

    `options` are those of an engine in the place of a backend.
    """
    if isinstance(backend, SourceBackend):
        backend = backend.resolve()
    compile_graph = graph_backend(backend, options)

    def compile_pieces(graph_module: GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        number = 0
        pieces: dict[Any, int] = {}
        was_eager = False
        for node in graph_module.graph.nodes:
            eager = operation_name(node) in operations
            number += eager or was_eager
            was_eager = eager
            pieces[node] = number
        split = split_module(graph_module, torch.nn.Module(), lambda node: pieces[node])
        for name, child in list(split.named_children()):
            if isinstance(child, GraphModule):
                called = {operation_name(node) for node in child.graph.nodes if node.op.startswith("call")}
                if not called & operations:
                    setattr(split, name, _Compiled(child, compile_graph))
        return split

    compile_pieces.__name__ = getattr(backend, "__name__", str(backend))
    compile_pieces.ignored = getattr(compile_graph, "ignored", frozenset())  # type: ignore[attr-defined]
    return compile_pieces


class _Compiled(torch.nn.Module):
    """A piece of a graph, compiled at its first call: only then are its inputs known."""

    def __init__(self, graph_module: GraphModule, compile_graph: Callable[..., Any]) -> None:
        super().__init__()
        output = graph_module.graph.output_node()
        # Backends want several results, even where there is only one.
        self.single = not isinstance(output.args[0], tuple | list)
        if self.single:
            output.args = ((output.args[0],),)
            graph_module.recompile()
        self.graph_module = graph_module
        self.compile_graph = compile_graph
        self.compiled: Callable[..., Any] | None = None

    def forward(self, *args: Any) -> Any:
        """Compile once, and call."""
        if self.compiled is None:
            self.compiled = self.compile_graph(self.graph_module, list(args))
        results = self.compiled(*args)
        return results[0] if self.single else results
