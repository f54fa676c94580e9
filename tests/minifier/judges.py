"""Questions about a case whose judge only reads the bundle, in a thread of this process."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from torchparity.minifier.gate import Gate
from torchparity.minifier.log import NAME, Log
from torchparity.minifier.questions import Budget, Questions, Whole
from torchparity.minifier.reduction import reduce_part
from torchparity.minifier.workshop import Workshop
from torchparity.records.wire import plain_data


def questions_of(case, folder, judge, *, width=1, budget=None):
    """Return who asks `judge(path)`, which answers at once; every answer is in the log before anybody hears it."""
    folder.mkdir(exist_ok=True)
    log = Log(folder / NAME)
    threads = ThreadPoolExecutor(max_workers=8)

    def asked(path) -> Future:
        return threads.submit(answered, path)

    def answered(path):
        answer, number = judge(path), int(path.name)
        log.write("answered", query=number, key=questions.keys[number], answer=plain_data(answer))
        return answer

    questions = Questions(
        Workshop(case), asked, folder=folder / "queries", log=log, width=width, budget=budget or Budget()
    )
    return questions


def whole_of(questions, *, looks_inside=False):
    return Whole(questions, known=None, looks_inside=looks_inside)


def reduced(questions, gate=None):
    """Reduce the whole case, without any suspicion; return the gate."""
    follower = whole_of(questions).follower()
    gate = gate or Gate(follower)
    gate.follow(follower)
    reduce_part(gate, questions.workshop.extractor)
    return gate
