import pytest

from torchparity.diagnosis.investigation import SHARES, Investigation
from torchparity.errors import CaseError
from torchparity.workers.outcome import Limits


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("torchparity.diagnosis.investigation.time.monotonic", lambda: self.now)

    def spend(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def nothing(result):
    return {}


def started(**options):
    return Investigation(subject="m", backend="b", **options)


def test_what_a_stage_finds_is_kept_and_saved_at_once(clock):
    saved = []
    run = started(save=saved.append)
    assert run.stage("check", lambda: clock.spend(3) or "found", keep=lambda told: {"subject": "other"}) == "found"
    assert (saved[-1].subject, saved[-1].stages[0].ending, saved[-1].stages[0].seconds) == ("other", "done", 3.0)
    assert saved[-1].ended == "unfinished"
    assert run.end().ended == ""


def test_an_error_of_ours_is_a_stage_that_found_nothing(clock):
    def refuse():
        raise CaseError("cannot be written down", hint="none")

    run = started()
    assert run.stage("graph", refuse, keep=nothing) is None
    assert isinstance(run.error, CaseError)
    assert (run.found.stages[0].ending, run.found.stages[0].note) == ("found nothing", "cannot be written down")
    with pytest.raises(CaseError):
        run.stage("check", refuse, keep=nothing, needed=True)


def test_an_error_that_is_not_ours_is_not_hidden(clock):
    with pytest.raises(ZeroDivisionError):
        started().stage("graph", lambda: 1 / 0, keep=nothing)


def test_a_budget_stops_the_stage_that_is_under_way_and_skips_the_rest(clock):
    run = started(budget=10.0)

    def long():
        clock.spend(11)
        run.tell("next run")

    assert run.stage("locate", long, keep=nothing) is None
    assert run.stage("minify", lambda: pytest.fail("was begun"), keep=nothing) is None
    assert [(stage.name, stage.ending) for stage in run.found.stages] == [("locate", "stopped"), ("minify", "skipped")]


def test_no_run_may_outlast_the_budget(clock):
    run = started(budget=10.0)
    clock.spend(4)
    assert run.limits(Limits(seconds=300.0)).seconds == 6.0
    assert run.limits(Limits(seconds=2.0)).seconds == 2.0
    assert started().limits(Limits(seconds=300.0)).seconds == 300.0


def test_an_interrupt_is_noted_and_goes_on_up(clock):
    run = started()

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.stage("minify", interrupt, keep=nothing)
    assert run.found.stages[0].note == "interrupted"


def test_the_time_left_is_estimated_by_the_first_check(clock):
    heard = []
    run = started(listen=heard.append)
    run.stage("check", lambda: clock.spend(10), keep=nothing)
    run.stage("blame", lambda: run.say("run 1"), keep=nothing)
    assert heard[0].left is None
    assert heard[-1].left == pytest.approx(10 * sum(share for name, share in SHARES.items() if name != "check"))
    assert (heard[-1].number, heard[-1].stages, heard[-1].doing) == (6, 6, "run 1")


def test_the_estimate_is_never_longer_than_the_budget(clock):
    heard = []
    run = started(listen=heard.append, budget=15.0)
    run.stage("check", lambda: clock.spend(10), keep=nothing)
    run.stage("graph", lambda: None, keep=nothing)
    assert heard[-1].left == pytest.approx(5.0)
