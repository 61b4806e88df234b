"""What is told of one batch: its own events, in order, in words, whichever rank or request they came from."""

from __future__ import annotations

from superdl.coordinator.core.events import FailureKind
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import Driver


def words(driver: Driver, position: int, *, job: str = "job") -> list[str]:
    history = driver.core.history(job, 0, 0, position)
    assert [at_s for at_s, _ in history] == sorted(at_s for at_s, _ in history)
    return [what for _, what in history]


def test_the_life_of_a_batch():
    driver = Driver(size=64, capacity=1, request_samples=8)
    driver.open(shuffle=False)
    driver.ask(0, 2)
    driver.fail(driver.requests[0], FailureKind.THROTTLED)
    driver.wait(1.0)
    driver.read(0, missed=(3,))
    driver.answer_all()
    driver.read(0)
    told = words(driver, 0)
    assert told[0].startswith("looked ahead")
    assert "request 1 for 8 of its samples, on account of job" in told
    assert "the sampler was told of it" in told
    assert "request 1 ended: the executor takes no more requests now: because" in told
    assert "a reader missed 1 of its samples" in told
    assert told[-1] == "read, 8 samples at the first attempt"


def test_other_batches_are_not_told_of():
    driver = Driver(size=64, capacity=1, request_samples=8)
    driver.open(shuffle=False)
    driver.ask(0, 2)
    driver.answer_all()
    driver.read(0)
    assert not any("read" in what for what in words(driver, 1))


def test_a_request_that_was_made_for_another_job_is_told_of():
    driver = Driver(size=64, capacity=1, request_samples=8)
    driver.open("first", shuffle=False)
    driver.open("second", shuffle=False)
    driver.answer_all(Outcome.CACHED)
    driver.ask(0, 2, job="second")
    assert any("on account of first" in what for what in words(driver, 0, job="second"))


def test_of_an_unknown_job_nothing_is_told():
    assert Driver().core.history("nobody", 0, 0, 0) == []


def test_memory_is_bounded():
    driver = Driver(size=6400, capacity=4, request_samples=4, lookahead_batches=4)
    driver.open()
    for position in range(600):
        driver.ask(position, position + 1, yielded=position)
        driver.answer_all()
        driver.read(position)
    assert len(driver.core.job("job").cursors[0].notes) == 256
    assert words(driver, 599)
    assert not any("read" in what for what in words(driver, 0))
