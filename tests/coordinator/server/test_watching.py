"""The log tells each change of state once: jobs, ranks, executors, caps; and counts what repeats itself."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from superdl.coordinator.core import ExecutorFacts, FailureKind, JobClosed, JobOpened, Plan, Prices, Team
from superdl.coordinator.server.watching import Watch
from tests.coordinator.core.driver import DATASET, Driver


@pytest.fixture
def log(caplog):
    """What was logged since the last look, and the fields of the last line."""
    caplog.set_level(logging.INFO)

    def lines():
        told = [record.getMessage() for record in caplog.records]
        lines.last = caplog.records[-1] if told else None
        caplog.clear()
        return told

    return lines


def watched(driver: Driver) -> Watch:
    dataset = SimpleNamespace(listing=SimpleNamespace(source="file:///photos"))
    registry = type("Registry", (dict,), {"opened": {DATASET: dataset}})({DATASET: dataset})
    return Watch(SimpleNamespace(core=driver.core, datasets=registry))


def test_jobs_and_ranks_are_told_of_once_and_many_in_one_line(log):
    driver = Driver(lease_s=10.0)
    watch = watched(driver)
    driver.open("a", replicas=2)
    driver.open("a", replicas=2, rank=1)
    watch.look()
    assert log() == ["job a opened: file:///photos, 64 samples, 2 ranks"]
    driver.wait(6.0)
    driver.ask(0, 1, job="a", rank=1)
    driver.wait(6.0)
    watch.step()
    assert log() == ["job a, rank 0: no sign of life, nothing is asked for ahead"]
    assert (log.last.job, log.last.rank, log.last.dataset) == ("a", 0, "file:///photos")
    driver.ask(0, 1, job="a")
    watch.step()
    assert log() == ["job a, rank 0: back"]
    for number in range(5):
        driver.open(f"b{number}")
    watch.step()
    assert len(log()) == 5
    driver.wait(30.0)
    watch.step()
    lapsed = "7 ranks of jobs: no sign of life, nothing is asked for ahead: a, rank 0, a, rank 1, b0, rank 0"
    assert log() == [f"{lapsed} and 4 more"]
    driver.step(JobClosed("b0", 0))
    watch.look()
    assert log() == ["job b0 closed: 0 batches read, 0.0 s waited, 0.0000 USD"]
    watch.step()
    assert log() == []


def test_throttling_is_counted_told_once_a_minute_and_its_end(log):
    driver = Driver(capacity=40, request_samples=1, lease_s=1000.0)
    watch = watched(driver)
    driver.open()
    driver.ask(0, 8)
    watch.step()
    log()
    for request in driver.requests[:30]:
        driver.fail(request, FailureKind.THROTTLED)
    watch.step()
    name = driver.state.fleet.executors[0].name
    (line,) = log()
    assert line.startswith(f"{name} throttled: 30 requests in 60 s, concurrency 40 wanted, ")
    assert log.last.executor == name
    driver.wait(30.0)
    watch.step()
    assert log() == []
    driver.fail(driver.requests[0], FailureKind.THROTTLED)
    driver.wait(31.0)
    watch.step()
    assert log()[0].startswith(f"{name} throttled: 1 request in 60 s")
    driver.wait(61.0)
    watch.step()
    assert log() == [f"{name} is not throttled any more"]


def test_a_cap_that_is_near_no_more_is_told_and_a_request_says_what_it_rests_on(log):
    facts = (ExecutorFacts("lambda", Prices(invocation=1.0)),)
    driver = Driver(executors=facts, max_usd_per_hour=3600.0 / 300)
    watch = watched(driver)
    driver.open()
    driver.ask(0, 8)
    said = driver.core.basis(driver.requests[0])
    assert said.startswith("request 1 for ")
    assert "at lambda in flight" in said
    driver.answer_all()
    driver.state.ledger._saved_usd = -1.0
    driver.wait(0.1)
    watch.step()
    driver.state.ledger._saved_usd = 100.0
    for _ in range(3):
        driver.wait(30.0)
        watch.step()
    assert log()[-1] == "no cap on spending was near for 60 s: all is produced ahead again"


def test_a_team_that_may_spend_no_more_is_told_of_and_so_is_one_that_may_again(log):
    facts = (ExecutorFacts("lambda", Prices(invocation=1.0)),)
    driver = Driver(executors=facts, teams=(Team("a", max_usd=1.5), Team("b")), request_samples=4)
    watch = watched(driver)
    driver.step(JobOpened("job", driver.dataset, Plan(64, batch_size=8), 0, team="a"))
    driver.answer_all()
    watch.step()
    (_, line) = log()
    assert line.startswith("the requests of team a have cost ")
    assert "raise max_usd" in line
    watch.step()
    assert log() == []
    driver.state.teams.change([Team("a", max_usd=100.0), Team("b")])
    watch.step()
    assert log() == ["team a may spend again"]
