"""A model that differs although each of its graphs agrees alone: what lies between them?

eager alone        Dynamo: what it traced, the guards, what it left to Python
compiled afresh    before every call: where that passes, a graph made for one call served another
more and more      of the compiler, where there is one graph and it agrees alone
some graphs only   the fewest graphs that must be compiled for the model to differ, the others run eagerly
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchparity.compilers.candidates import Afresh, Candidate, Compiled, Some
from torchparity.compilers.recipe import recipe_of
from torchparity.errors import NothingFails
from torchparity.graphs.search import needed
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import settings_of
from torchparity.records import Blame, Status, Trial
from torchparity.repro.names import user_lines
from torchparity.request import Request
from torchparity.run.plan import plan_of
from torchparity.run.subject import Subject

# More and more of the compiler, and what the first that differs adds.
LADDER = (("aot_eager", "aot_autograd"), ("aot_eager_decomp_partition", "decomposition"))


class Between:
    """One inquiry into a whole model, in this process."""

    def __init__(self, subject: Subject, request: Request, listen: Callable[[str], None] | None) -> None:
        self.subject, self.request, self.listen = subject, request, listen
        self.plan = plan_of(request, subject)
        self.recipe = recipe_of(request, dynamic=subject.dynamic)
        self.trials: list[Trial] = []
        self.began = time.monotonic()

    def attempt(self, change: str, candidate: Candidate) -> Trial:
        """Judge the model against another candidate."""
        if self.listen is not None:
            self.listen(f"run {len(self.trials) + 1}: the whole model, {change}")
        verdict = Oracle(self.subject, self.plan, candidate, settings_of(self.request)).judge()
        self.trials.append(Trial(change=change, status=verdict.status, kind=verdict.kind, seconds=verdict.seconds))
        return self.trials[-1]

    def run(self) -> Blame:
        """Try Dynamo alone, then fresh graphs for every call, then fewer and fewer graphs."""
        some = Some(self.recipe, first_line)
        failing = self.attempt("as it is", self.through(some))
        self.must_differ(failing)
        lines = list(some.met)
        alone = self.attempt("Dynamo alone", self.through("eager"))
        if alone.status is Status.DIFFERS:
            return self.found("dynamo", alone, None)
        fresh = self.attempt("compiled afresh for every call", Afresh(self.recipe))
        if fresh.status is Status.SAME:
            return self.found("guards", failing, fresh)
        if len(lines) < 2:
            return self.by_backend(failing, alone)
        graphs = needed(range(len(lines)), self.differs_with)
        if len(graphs) < 2:
            return self.by_backend(failing, alone)
        words = "; ".join(f"graph {number + 1} ({lines[number]})" for number in graphs)
        return self.found("between", failing, alone, part=words)

    def by_backend(self, failing: Trial, alone: Trial) -> Blame:
        """One graph, which differs only where it is called as the model calls it: with how much of the compiler?"""
        passing = alone if alone.status is Status.SAME else None
        if self.recipe.backend != "inductor":
            return self.found("backend", failing, passing)
        for backend, stage in LADDER:
            trial = self.attempt(f"backend {backend}", self.through(backend))
            if trial.status is Status.DIFFERS:
                return self.found(stage, trial, passing)
            passing = trial if trial.status is Status.SAME else passing
        return self.found("inductor", failing, passing)

    def run_deployed(self) -> Blame:
        """An engine gets the model whole: it differs, and Dynamo alone does not."""
        failing = self.attempt("as it is", Compiled(self.recipe))
        self.must_differ(failing)
        bare = replace(self.recipe, backend="eager", options={}, config={})
        alone = self.attempt("Dynamo alone", Compiled(bare))
        return self.found("backend", failing, alone if alone.status is Status.SAME else None)

    def must_differ(self, trial: Trial) -> None:
        """Refuse to look for what makes a model differ that does not."""
        if trial.status is not Status.DIFFERS:
            raise NothingFails(
                f"{self.subject.title()} does not fail: {trial.status.value}",
                hint="there is nobody to blame",
                unknown=trial.status is Status.UNKNOWN,
            )

    def differs_with(self, chosen: list[int]) -> bool:
        """Tell whether the model differs where only these graphs are compiled."""
        words = ", ".join(str(number + 1) for number in chosen) or "none"
        some = Some(self.recipe, first_line, chosen=set(chosen))
        return self.attempt(f"only graphs {words} compiled", self.through(some)).status is Status.DIFFERS

    def through(self, backend: Any) -> Compiled:
        """Return the model compiled by a backend that hands on what the recipe's own is told."""
        return Compiled(replace(self.recipe, backend=backend, mode=None, options={}))

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


def first_line(graph_module: GraphModule) -> str:
    """Return the first line of the user's that a graph comes from."""
    return next(iter(user_lines(graph_module)), "nowhere")


def blame_whole(subject: Subject, request: Request, *, listen: Callable[[str], None] | None = None) -> Blame:
    """Return what makes a model differ whose graphs agree, each by itself."""
    with torch.random.fork_rng(devices=[]):
        between = Between(subject, request, listen)
        return between.run() if between.recipe.engine is None else between.run_deployed()
