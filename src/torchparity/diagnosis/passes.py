"""The numbers before and after every pass over a graph: inductor's own, or a list of the user's.

While a model compiles, every pass is noted with its graph before and after. Once it has run, and the real inputs of its
graphs are known, the two are compared by the oracle, as if the pass were a compiler. Nothing that goes wrong here stops
the compilation: it becomes a note.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from torchparity import torchapi
from torchparity.compilers.candidates import Compiled, Given
from torchparity.compilers.recipe import recipe_of
from torchparity.errors import UsageError
from torchparity.graphs.part import placeholders
from torchparity.graphs.recording import copied_together
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import settings_of
from torchparity.records import Kind, PassesReport, PassResult, Status, Verdict
from torchparity.request import PLAIN, Request
from torchparity.run.plan import Plan, plan_of
from torchparity.run.step import Runner
from torchparity.run.subject import Subject

USERS = "passes"
PRE_GRAD, JOINT = "pre_grad_passes", "joint_graph_passes"
# Facts about memory, which a pass may change as it likes.
FACTS = frozenset({Kind.STRIDE, Kind.ALIAS, Kind.REQUIRES_GRAD, Kind.LAYOUT})

Pass = Callable[[GraphModule], Any]


def check_passes_of_inductor(subject: Subject, request: Request) -> PassesReport:
    """Compile a model with inductor, run it as the request says, and judge every pass."""
    began = time.monotonic()
    watch = PassWatch(request)
    plan = plan_of(request, subject)
    candidate = Compiled(recipe_of(request, dynamic=subject.dynamic)).with_eager_random()
    runner = Runner(subject, plan)
    try:
        with watch.active(), candidate.active():
            ending = runner.run(candidate.build(subject.model), lambda leaf: None)
    finally:
        candidate.release()
        runner.release()
    if ending.failure is not None:
        watch.notes.append(f"the compiled model raises {ending.failure.type}: {ending.failure.message}")
    return watch.judge(subject.title(), backward=plan.backward, began=began)


@contextlib.contextmanager
def watch_passes() -> Iterator[PassWatch]:
    """Watch inductor's passes in a compilation of one's own; afterwards `.report` tells what each did to the numbers.

    What the check itself does wrong never reaches the code inside.
    """
    began = time.monotonic()
    watch = PassWatch()
    with watch.active():
        yield watch
    watch.judge("", backward=True, began=began)


# --- passes of the user's ------------------------------------------------------------------------------


def check_user_passes(model: GraphModule, subject: Subject, request: Request, passes: Sequence[Pass]) -> PassesReport:
    """Apply passes one after the other; compare the graph before and after each."""
    began = time.monotonic()
    results, notes = [], []
    current, plan = model, plan_of(request, subject)
    for number, function in enumerate(passes):
        facts: dict[str, Any] = {
            "name": getattr(function, "__name__", type(function).__name__),
            "stage": USERS,
            "number": number,
        }
        before = text_of(current.graph)
        try:
            after = applied(function, current)
            difference = difference_of(before, text_of(after.graph))
            verdict = judged(replace(subject, model=current), plan, after, request)
        except Exception as error:  # noqa: BLE001 - a pass that raises is reported, and the others go on
            why = f"{type(error).__name__}: {error}"
            notes.append(f"{facts['name']} could not be judged: {why}")
            results.append(PassResult(**facts, changed=True, status=Status.UNKNOWN, why=why))
            continue
        changed = bool(difference) or verdict.status is not Status.SAME
        results.append(result_of(verdict, **facts, changed=changed, difference=difference))
        current = after
    return PassesReport(
        subject=subject.title(), passes=tuple(results), notes=tuple(notes), seconds=time.monotonic() - began
    )


def judged(subject: Subject, plan: Plan, after: GraphModule, request: Request) -> Verdict:
    """Hold what a pass made of a graph against the graph; how it lies in memory is the pass' own business."""
    settings = settings_of(request)
    tolerance = replace(settings.tolerance, ignore=settings.tolerance.ignore | FACTS)
    return Oracle(subject, plan, Given(after), replace(settings, tolerance=tolerance)).judge()


def result_of(verdict: Verdict, *, status: Status | None = None, **facts: Any) -> PassResult:
    """Return what a verdict says of a pass."""
    status, worst = status or verdict.status, verdict.worst
    return PassResult(
        **facts,
        status=status,
        kind=verdict.kind if status is Status.DIFFERS else "",
        score=max(worst.score, worst.aggregate_score) if worst is not None else 0.0,
        leaf=worst.path if worst is not None and status is Status.DIFFERS else "",
        why="" if status is Status.SAME else verdict.reasons[0],
    )


def applied(function: Pass, model: GraphModule) -> GraphModule:
    """Apply a pass to a copy of a graph; what it left as it was is the model's own again."""
    duplicate = copy.deepcopy(model)
    made = function(duplicate)
    after = getattr(made, "graph_module", made)  # As torch.fx's own passes return it.
    after = after if isinstance(after, GraphModule) else duplicate
    after.recompile()
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in [*after.named_parameters(), *after.named_buffers()]:
        original = own.get(name)
        if original is not None and same_tensor(original, value):
            home, _, last = name.rpartition(".")
            setattr(after.get_submodule(home), last, original)
    return after


def same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether a tensor is a copy of another, gradient flag and all."""
    alike = left.shape == right.shape and left.dtype == right.dtype and left.requires_grad == right.requires_grad
    return alike and type(left) is type(right) and bool(torch.equal(left.detach(), right.detach()))


# --- inductor's own passes -----------------------------------------------------------------------------


@dataclass
class Noted:
    """One pass while it is noted: the graph before and after, and what its inputs will be found by."""

    name: str
    stage: str
    before: GraphModule | None
    after: GraphModule | None
    difference: str
    compiled: int
    graph: int


@dataclass
class PassWatch:
    """Notes every pass of inductor while it is active, and the inputs that the graphs are then called with."""

    request: Request = PLAIN
    noted: list[Noted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    report: PassesReport | None = None
    # The inputs of Dynamo's graphs, and of the graphs that code was written for, by number.
    given: dict[int, list[Any]] = field(default_factory=dict)
    called: dict[int, tuple[list[str], list[Any]]] = field(default_factory=dict)
    graphs: dict[int, int] = field(default_factory=dict)
    _compiled: int = 0
    _inside: int = 0
    _graph: int = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[PassWatch]:
        """Watch whatever is compiled inside."""
        settings = {"functorch.enable_autograd_cache": False, "inductor.fx_graph_cache": False}
        with (
            torchapi.patched_config(settings),
            torchapi.inductor.watched_passes(self._hear_pass),
            torchapi.inductor.watched_graphs(self._hear_graph),
            torchapi.inductor.watched_code(self._hear_code),
        ):
            yield self

    def _hear_graph(self, graph_module: GraphModule, compile_graph: Callable[[], Any]) -> Any:
        """Compile a graph of Dynamo's, and keep what it is called with."""
        self._graph += 1
        number = self._graph
        compiled = compile_graph()

        def run(*args: Any) -> Any:
            values = values_of(args)
            if number not in self.given:
                kept = self._attempt(lambda: list(copied_together(values)))
                if kept is not None:
                    self.given[number] = kept
            return compiled(*args)

        return boxed_like(compiled, run)

    def _hear_pass(self, stage: str, name: str, graph_module: GraphModule, apply: Callable[[], Any]) -> Any:
        before = self._attempt(lambda: (text_of(graph_module.graph), duplicate_of(graph_module)))
        result = apply()
        after = self._attempt(lambda: text_of(graph_module.graph))
        if before is None or after is None:
            unseen = Noted(name, stage, None, None, "it could not be watched", self._inside, self._graph)
            self.noted.append(unseen)
            return result
        text, kept = before
        changed = text != after
        copy_after = self._attempt(lambda: duplicate_of(graph_module)) if changed else None
        self.noted.append(
            Noted(
                name=name,
                stage=stage,
                before=kept if changed else None,
                after=copy_after,
                difference=difference_of(text, after) if changed else "",
                compiled=self._inside,
                graph=self._graph,
            )
        )
        return result

    def _hear_code(self, graph_module: GraphModule, compile_graph: Callable[[], Any]) -> Any:
        self._compiled += 1
        number = self._compiled
        self._inside, before = number, self._inside
        names = [node.name for node in placeholders(graph_module)]
        self.graphs[number] = self._graph
        try:
            compiled = compile_graph()
        finally:
            self._inside = before

        def run(*args: Any) -> Any:
            values = values_of(args)
            if number not in self.called:
                kept = self._attempt(lambda: list(copied_together(values)))
                if kept is not None:
                    self.called[number] = (names, kept)
            return compiled(*args)

        return boxed_like(compiled, run, always=True)

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """Do something for the check alone: what it raises is a note."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - the user's compilation goes on
            self.notes.append(f"a pass could not be watched: {type(error).__name__}: {error}")
            return None

    # --- afterwards ------------------------------------------------------------------------------------

    def judge(self, subject: str, *, backward: bool, began: float) -> PassesReport:
        """Compare every graph before and after its pass, on the inputs that were seen."""
        results = [self._judged(number, noted, backward=backward) for number, noted in enumerate(self.noted)]
        self.report = PassesReport(
            subject=subject, passes=tuple(results), notes=tuple(self.notes), seconds=time.monotonic() - began
        )
        return self.report

    def _judged(self, number: int, noted: Noted, *, backward: bool) -> PassResult:
        facts: dict[str, Any] = {
            "name": noted.name,
            "stage": noted.stage,
            "number": number,
            "difference": noted.difference,
        }
        if noted.before is None or noted.after is None:
            if noted.difference:
                return PassResult(**facts, changed=True, status=Status.UNKNOWN, why="its graph could not be copied")
            return PassResult(**facts, changed=False, status=Status.SAME)
        inputs = self._inputs_of(noted)
        if inputs is None:
            return PassResult(**facts, changed=True, status=Status.UNKNOWN, why="its inputs were never seen")
        gradients = backward and noted.stage == PRE_GRAD
        plan = Plan(backward=gradients and any(getattr(value, "requires_grad", False) for value in inputs))
        try:
            verdict = judged(Subject(noted.before, inputs, name=noted.name), plan, noted.after, self.request)
        except Exception as error:  # noqa: BLE001 - what cannot be judged is said
            self.notes.append(f"{noted.name} could not be judged: {type(error).__name__}: {error}")
            return PassResult(**facts, changed=True, status=Status.UNKNOWN, why=str(error))
        raised = verdict.failure is not None and verdict.failure.stage == "accepts_invalid"
        # Where the graph before does not run by itself, nothing can be said.
        return result_of(verdict, **facts, changed=True, status=Status.UNKNOWN if raised else None)

    def _inputs_of(self, noted: Noted) -> list[Any] | None:
        """Return real inputs for the graph of a pass."""
        assert noted.before is not None
        names = [node.name for node in placeholders(noted.before)]
        if noted.compiled:
            return self._matching(names, dict(zip(*self.called.get(noted.compiled, ([], [])), strict=True)))
        given = self.given.get(noted.graph)
        if noted.stage == PRE_GRAD:
            return given if given is not None and len(given) == len(names) else None
        seen: dict[str, Any] = {}
        for number, (called, values) in self.called.items():
            if self.graphs[number] == noted.graph:
                seen |= dict(zip(called, values, strict=True))
        return self._matching(names, seen)

    def _matching(self, names: list[str], seen: Mapping[str, Any]) -> list[Any] | None:
        return [seen[name] for name in names] if all(name in seen for name in names) else None


def values_of(args: tuple[Any, ...]) -> list[Any]:
    """Return the inputs of a call, in whichever of two conventions: one list, or one after the other."""
    return list(args[0]) if len(args) == 1 and isinstance(args[0], list) else list(args)


def boxed_like(compiled: Any, run: Callable[..., Any], *, always: bool = False) -> Callable[..., Any]:
    """Return a function that is called by the convention of another one: AOTAutograd asks for a mark."""
    return torchapi.mark_boxed(run) if always or torchapi.is_boxed(compiled) else run


def duplicate_of(graph_module: GraphModule) -> GraphModule:
    """Return a graph that later passes do not touch; its tensors are the same."""
    graph = Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    return GraphModule(graph_module, graph)


def text_of(graph: Graph) -> str:
    """Return a graph as text that tells every change but that of metadata."""
    return "\n".join(node.format_node() or f"return {node.args[0]}" for node in graph.nodes)


def difference_of(before: str, after: str) -> str:
    """Return a unified diff of two graphs."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", n=1, lineterm="")
    return "\n".join(lines)


def as_graph(model: Any) -> GraphModule:
    """Return a model as a graph that passes can work on, or refuse."""
    if isinstance(model, GraphModule):
        return model
    try:
        return torch.fx.symbolic_trace(model)
    except Exception as error:
        raise UsageError(
            f"passes work on graphs, and the model cannot be traced: {type(error).__name__}: {error}",
            hint="give a torch.fx.GraphModule, such as torch.export makes",
        ) from error
