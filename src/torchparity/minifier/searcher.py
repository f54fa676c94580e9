"""The search itself, in a worker: opens the case, makes parts, asks its caller about them, writes what it finds.

It runs what may crash, so it is expendable: the log holds every answer, and another one goes on from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from torchparity.errors import ParityError
from torchparity.graphs.part import Part
from torchparity.judge.reading import Reading
from torchparity.judge.script import write_bundle
from torchparity.minifier.answers import Answer
from torchparity.minifier.delivery import nearest
from torchparity.minifier.gate import Gate
from torchparity.minifier.log import NAME, Log
from torchparity.minifier.questions import Asked, Budget, BudgetSpent, Following, Questions, Whole, key_of
from torchparity.minifier.reduction import FEW, polish, reduce_part
from torchparity.minifier.suspects import Hint, suspicions
from torchparity.minifier.trials import Trials, under
from torchparity.minifier.workshop import Workshop
from torchparity.records import Signature
from torchparity.records.wire import plain_data, record_from
from torchparity.repro.bundle import read_bundle
from torchparity.repro.case import Case
from torchparity.repro.opening import open_case
from torchparity.repro.plain import Plain, write_plain
from torchparity.run.environment import environment
from torchparity.workers.desk import Caller, Hung

SEARCH_JOB = "torchparity.minifier.searcher:search_job"
START, FOUND, PASSING, QUERIES = "start", "case", "passing", "queries"


def search_job(payload: dict[str, Any], announce: Callable[[str], None]) -> dict[str, Any]:
    """Search in a folder; answer with what was found, or with the error that the caller is to raise."""
    folder = Path(payload["folder"])
    log = Log(folder / NAME)
    try:
        with under(Trials(folder, log.fatal, payload["seconds"])):
            return search(folder, log, payload)
    except BudgetSpent:
        return {"spent": True}
    except Hung:
        return {"interrupted": True}
    except ParityError as error:
        return {"error": error.to_data()}


def search(folder: Path, log: Log, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce as far as it goes, and leave the smallest case, and the nearest one that passes, in the folder."""
    workshop = Workshop(read_bundle(folder / START))
    caller = Caller(payload["desk"])

    questions = asking(workshop, caller, folder, log, payload)
    known = record_from(Answer, payload["known"]) if payload["known"] is not None else None
    whole = Whole(questions, known=known, looks_inside=payload["looks_inside"])
    gate = Gate(Following(questions, Signature(kind="")))
    stopped: BaseException | None = None
    try:
        hint = Hint(lambda wait: caller.ask({"where": wait}).result() if payload["hinted"] else {})
        reduce_part(gate, workshop.extractor, suspicions(whole, payload["free"], hint), otherwise=whole.follower)
    except (BudgetSpent, Hung) as error:
        if gate.best is None:
            raise
        stopped = error
    follower = gate.asker
    assert isinstance(follower, Following)
    stopped = with_the_whole(questions, gate, stopped)
    small = leave(folder, workshop, gate, follower.signature)
    answer = log.answers.get(key_of(gate.current), Answer())
    scripts = plain_scripts(small, follower.signature, answer.tolerance) if payload["looks_inside"] else ()
    return {
        "signature": plain_data(follower.signature),
        "complete": stopped is None,
        "interrupted": isinstance(stopped, Hung),
        "queries": questions.queries,
        "unanswered": gate.unanswered,
        "scripts": list(dict.fromkeys(scripts)),
        # Where the whole case was not asked first, what was followed is only believed to be its failure.
        "believed": None if whole.settled or whole.expected is not None else key_of(workshop.whole),
    }


def asking(workshop: Workshop, caller: Caller, folder: Path, log: Log, payload: Mapping[str, Any]) -> Questions:
    """Return who asks the caller about parts, and tells him what he may want to know before the end."""

    def judge(path: Path) -> Future[Answer]:
        number = int(path.name)
        heard: Future[Answer] = Future()

        def told(future: Future[Any]) -> None:
            if future.exception() is not None:
                heard.set_exception(future.exception())
            else:
                heard.set_result(record_from(Answer, future.result()))

        caller.ask({"judge": str(path), "key": questions.keys[number], "query": number}).add_done_callback(told)
        return heard

    def listen(asked: Asked) -> None:
        caller.ask({"asked": asdict(asked)})

    def adopted(part: Part) -> None:
        if part.compute_nodes <= FEW:
            caller.ask({"small": part.compute_nodes}).result()  # Its bundle stands until the next one is adopted.

    def likely(part: Part) -> None:
        assert questions.pinned is not None
        case, answer = case_of(workshop, part, questions.pinned), log.answers.get(key_of(part), Answer())
        for text in itertools.islice(plain_scripts(case, questions.pinned, answer.tolerance), 1):
            caller.ask({"script": text})

    budget = Budget(seconds=payload["budget_seconds"], queries=payload["budget_queries"])
    questions = Questions(
        workshop, judge, folder=folder / QUERIES, log=log, width=payload["width"], budget=budget, listen=listen
    )
    questions.adopted = adopted if payload["told_early"] else None
    questions.likely = likely if payload["rehearses"] else None
    return questions


def with_the_whole(questions: Questions, gate: Gate, stopped: BaseException | None) -> BaseException | None:
    """See that the end fails with the whole compiler, where less of it was asked; else go on from what is sure.

    Return what stopped the search, if anything.
    """
    less_was_asked, questions.lesser, questions.seeks_lesser = questions.lesser, "", False
    if not less_was_asked or questions.sure is None:
        return stopped
    try:
        holds = not isinstance(stopped, Hung) and confirmed(questions, gate)
    except Hung as error:
        holds, stopped = False, error
    if holds:
        return stopped
    gate.back_to(questions.sure)
    if stopped is None:
        try:
            polish(gate)
        except (BudgetSpent, Hung) as error:
            return error
    return stopped


def confirmed(questions: Questions, gate: Gate) -> bool:
    """Ask whether the smallest part fails, and the nearest one passes, as they are; though the budget is spent."""
    budget, questions.budget = questions.budget, Budget()
    near = nearest(gate.passing, gate.current)
    smallest = gate.asker.ask(gate.current)
    passes = near is not None and gate.asker.ask(near).result() is Reading.PASSES
    gate.passing.clear()
    if near is not None and passes:
        gate.passing.append(near)
    holds = smallest.result() is Reading.FAILS
    questions.budget = budget
    return holds


def case_of(workshop: Workshop, part: Part, signature: Signature) -> Case:
    """Return a part as the case that is handed over."""
    started = workshop.case
    return replace(
        workshop.case_of(part),
        signature=replace(signature, summary=f"fails: {signature.text}"),
        environment={**started.environment, **environment(torch.device(started.device))},
    )


def leave(folder: Path, workshop: Workshop, gate: Gate, signature: Signature) -> Case:
    """Write the smallest case with its failure, and the nearest one that passes."""
    small = case_of(workshop, gate.current, signature)
    write_bundle(small, folder / FOUND)
    passing = nearest(gate.passing, gate.current)
    if passing is not None:
        write_bundle(workshop.case_of(passing), folder / PASSING)
    return small


def plain_scripts(case: Case, signature: Signature, tolerance: float) -> Iterator[str]:
    """Yield the plain scripts of a case: with the usual tolerance, then with the oracle's."""
    if case.files:
        return
    opened = open_case(case)
    model, inputs, _ = opened.make()
    graph_module = opened.graph(model)
    for allowed in (None, tolerance):
        plain = Plain(
            graph_module=graph_module,
            inputs=inputs,
            recipe=case.recipe,
            kind=signature.kind,
            backward=case.backward,
            without_gradients=next((name for name in ("inference_mode", "no_grad") if getattr(case.request, name)), ""),
            autocast=case.autocast,
            tolerance=allowed,
            environment=case.environment,
        )
        text = write_plain(plain)
        if text is not None:
            yield text
