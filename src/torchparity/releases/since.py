"""A script in every release, and what the answers say together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchparity.errors import ParityError
from torchparity.records import ReleaseAnswer, ReleaseChange, ReleaseState, Since
from torchparity.releases.environments import ASKING_SECONDS, environment_for
from torchparity.releases.refusals import without_torch
from torchparity.releases.scripts import meaning_of, run_script, torch_of
from torchparity.releases.versions import order, skips

# Told of: the number of a release among those that are asked, and what is being done with it.
Listen = Callable[[int, str], None]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of each release: a script and its time; `error` is the failure that is meant, where it is known."""

    script: Path
    seconds: float
    error: str | None = None
    options: tuple[str, ...] = ()


def ask_all(
    question: Question, releases: Sequence[str], pythons: Sequence[str], *, listen: Listen | None = None
) -> Iterator[Since]:
    """Ask one release after the other; yield all that is known after each of them."""
    began = time.monotonic()
    answers: list[ReleaseAnswer] = []
    asked = [*((release, False) for release in releases), *((python, True) for python in pythons)]
    for number, (name, given) in enumerate(asked, start=1):

        def tell(doing: str, number: int = number, name: str = name) -> None:
            if listen is not None:
                listen(number, f"{name}: {doing}")

        answers.append(ask(question, name, given=given, before=answers, tell=tell))
        tell(answers[-1].state.value)
        yield together(question, answers, seconds=time.monotonic() - began)


def ask(
    question: Question, name: str, *, given: bool, before: Sequence[ReleaseAnswer], tell: Callable[[str], None]
) -> ReleaseAnswer:
    """Return what a script says with a `given` interpreter, or in a release; what cannot be had is UNKNOWN."""
    try:
        if given:
            python, version = name, given_torch(name)
        else:
            environment = environment_for(name, options=question.options, tell=tell)
            python, version = environment.interpreter, environment.torch
        same = next((answer for answer in before if answer.python == python and answer.torch), None)
        if same is not None:  # 2.9 and 2.9.1 may be the same.
            return replace(same, asked=name)
        tell(f"running {question.script.name}")
        ended = run_script(question.script, python, seconds=question.seconds)
    except ParityError as error:
        why = f"not available: {error.message}"
        return ReleaseAnswer(asked=name, state=ReleaseState.UNKNOWN, why=why, hint=error.hint)
    except OSError as error:
        return ReleaseAnswer(asked=name, state=ReleaseState.UNKNOWN, why=f"cannot be run: {error.strerror or error}")
    meaning = meaning_of(ended, seconds=question.seconds)
    return ReleaseAnswer(
        asked=name,
        state=meaning.state,
        torch=version,
        why=meaning.why,
        error=meaning.error,
        exit_code=None if ended.late else ended.exit_code,
        seconds=ended.seconds,
        python=python,
        output=ended.output,
    )


def given_torch(python: str) -> str:
    """Return the version of torch that a given interpreter has; ResourceError where it has none."""
    version, ended = torch_of(python, seconds=ASKING_SECONDS)
    if not version:
        raise without_torch(f"{python} was named", ended)
    return version


def together(question: Question, answers: Sequence[ReleaseAnswer], *, seconds: float) -> Since:
    """Return what answers say together: the oldest release first, and one failure followed over all of them."""
    ordered = sorted(answers, key=lambda answer: order(answer.torch or answer.asked))
    failures = [answer.error for answer in ordered if answer.state is ReleaseState.FAILS]
    error = question.error if question.error is not None else (failures or [""])[-1]
    followed = tuple(followed_as(answer, error) for answer in ordered)
    return Since(
        script=str(question.script), answers=followed, changes=tuple(changes(followed)), error=error, seconds=seconds
    )


def followed_as(answer: ReleaseAnswer, error: str) -> ReleaseAnswer:
    """Return an answer as one about a certain failure: who fails in another way says nothing about it."""
    if answer.state is not ReleaseState.FAILS or answer.error == error:
        return answer
    return replace(answer, state=ReleaseState.UNKNOWN, why=f"fails in another way: {answer.why}")


def changes(answers: Sequence[ReleaseAnswer]) -> Iterator[ReleaseChange]:
    """Yield each pair of releases between which the answer changes, with those between them that gave none."""
    last: ReleaseAnswer | None = None
    silent: list[str] = []
    for answer in answers:
        if answer.state is ReleaseState.UNKNOWN:
            silent.append(answer.name)
            continue
        if last is not None and answer.state is not last.state:
            between = not silent and skips(last.name, answer.name)
            yield ReleaseChange(
                before=last.name, after=answer.name, state=answer.state, silent=tuple(silent), skipped=between
            )
        last, silent = answer, []
