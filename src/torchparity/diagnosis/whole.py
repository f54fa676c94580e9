"""A model that differs although each of its graphs agrees alone: what lies between them?

eager alone        Dynamo: what it traced, the guards, what it left to Python
compiled afresh    before every call: where that passes, a graph made for one call served another
some graphs only   the fewest graphs that must be compiled for the model to differ, the others run eagerly
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchparity.compare.judgement import Tolerance
from torchparity.errors import UsageError
from torchparity.execute.ground import Settings
from torchparity.execute.oracle import Oracle
from torchparity.graphs.search import needed
from torchparity.records import Blame, Status, Trial
from torchparity.repro.source import user_lines
from torchparity.run.engines import graph_backend
from torchparity.run.recipe import Recipe
from torchparity.run.step import Plan
from torchparity.run.subject import Subject

Listener = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Afresh(Recipe):
    """A recipe that compiles again before every call."""

    def build(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model, compiled anew whenever it is called."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return super(Afresh, self).build(model)(*args, **kwargs)

        return run


@dataclass
class Some:
    """A backend that gives some of the graphs it meets to another one, and runs the others as they are."""

    backend: Any
    chosen: set[int] | None = None
    met: list[str] = field(default_factory=list)
    __name__ = "some of the graphs"

    def __call__(self, graph_module: GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        """Compile a graph that was chosen; every one where none were."""
        number = len(self.met)
        self.met.append(next(iter(user_lines(graph_module)), "nowhere"))
        if self.chosen is not None and number not in self.chosen:
            return graph_module.forward
        compiled: Callable[..., Any] = graph_backend(self.backend)(graph_module, inputs, **options)
        return compiled


class Between:
    """One inquiry into a whole model, in this process."""

    def __init__(self, subject: Subject, plan: Plan, recipe: Recipe, listen: Listener | None) -> None:
        self.subject, self.plan, self.recipe, self.listen = subject, plan, recipe, listen
        self.trials: list[Trial] = []
        self.began = time.monotonic()

    def attempt(self, change: str, recipe: Recipe) -> Trial:
        """Judge the model under another recipe."""
        if self.listen is not None:
            self.listen(f"run {len(self.trials) + 1}: the whole model, {change}")
        verdict = Oracle(self.subject, self.plan, recipe.validated(), Settings(tolerance=Tolerance())).judge()
        self.trials.append(Trial(change=change, status=verdict.status, kind=verdict.kind, seconds=verdict.seconds))
        return self.trials[-1]

    def run(self) -> Blame:
        """Try Dynamo alone, then fresh graphs for every call, then fewer and fewer graphs."""
        some = Some(self.recipe.backend)
        failing = self.attempt("as it is", replace(self.recipe, backend=some))
        self.must_differ(failing)
        lines = list(some.met)
        alone = self.attempt("Dynamo alone", replace(self.recipe, backend="eager", mode=None, options={}))
        if alone.status is Status.DIFFERS:
            return self.found("dynamo", alone, None)
        fields = {name: getattr(self.recipe, name) for name in Recipe.__dataclass_fields__}
        fresh = self.attempt("compiled afresh for every call", Afresh(**fields))
        if fresh.status is Status.SAME:
            return self.found("guards", failing, fresh)
        if len(lines) < 2:
            return self.found("backend", failing, alone if alone.status is Status.SAME else None)
        graphs = needed(range(len(lines)), self.differs_with)
        words = "; ".join(f"graph {number + 1} ({lines[number]})" for number in graphs)
        return self.found("between", failing, alone, part=words)

    def run_deployed(self) -> Blame:
        """An engine gets the model whole: it differs, and Dynamo alone does not."""
        failing = self.attempt("as it is", self.recipe)
        self.must_differ(failing)
        alone = self.attempt("Dynamo alone", replace(self.recipe, backend="eager", options={}, config={}))
        return self.found("backend", failing, alone if alone.status is Status.SAME else None)

    def must_differ(self, trial: Trial) -> None:
        """Refuse to look for what makes a model differ that does not."""
        if trial.status is not Status.DIFFERS:
            raise UsageError(
                f"{self.subject.title()} does not fail: {trial.status.value}", hint="there is nobody to blame"
            )

    def differs_with(self, chosen: list[int]) -> bool:
        """Tell whether the model differs where only these graphs are compiled."""
        words = ", ".join(str(number + 1) for number in chosen) or "none"
        recipe = replace(self.recipe, backend=Some(self.recipe.backend, chosen=set(chosen)))
        return self.attempt(f"only graphs {words} compiled", recipe).status is Status.DIFFERS

    def found(self, stage: str, failing: Trial, passing: Trial | None, *, part: str = "") -> Blame:
        """Return the finding."""
        return Blame(
            subject=self.subject.title(),
            kind=failing.kind,
            stage=stage,
            part=part,
            failing=failing,
            passing=passing,
            trials=tuple(self.trials),
            seconds=time.monotonic() - self.began,
        )


def blame_whole(subject: Subject, plan: Plan, recipe: Recipe, *, listen: Listener | None = None) -> Blame:
    """Return what makes a model differ whose graphs agree, each by itself."""
    with torch.random.fork_rng(devices=[]):
        between = Between(subject, plan, recipe, listen)
        return between.run() if recipe.engine is None else between.run_deployed()
