"""One record of each executor is read back now and then; what does not read back is produced again."""

from __future__ import annotations

from superdl.coordinator.core import SampleState
from superdl.coordinator.core.events import ExecutorResized, RecordReadBack
from superdl.coordinator.core.settings import ExecutorFacts
from tests.coordinator.core.driver import Driver


def told(driver: Driver, fault: str) -> None:
    """The record that was asked for is as it should be, or not."""
    chosen = driver.read_backs.pop()
    driver.step(RecordReadBack(chosen.samples, chosen.index, chosen.executor, fault))


def producing(**settings) -> Driver:
    driver = Driver(size=640, request_samples=8, **settings)
    driver.open(shuffle=False)
    driver.ask(0, 80)
    return driver


def test_one_record_of_an_executor_is_read_back_every_few_seconds_however_many_it_writes():
    driver = producing(lookahead_batches=64)
    driver.answer_all()
    assert len(driver.read_backs) == 1
    told(driver, "")
    assert driver.warnings == []
    for position in range(20):
        driver.read(position, after_s=0.5)
        driver.answer_all()
    assert len(driver.read_backs) in {1, 2}, "10 s"


def test_what_does_not_read_back_is_dropped_and_produced_again_and_told_once():
    driver = producing(lookahead_batches=2)
    driver.answer(driver.requests[0])
    (chosen,) = driver.read_backs
    told(driver, "its hash is another")
    assert [drop.indices.tolist() for drop in driver.drops] == [[chosen.index]]
    assert [request.indices.tolist() for request in driver.requests].count([chosen.index]) == 1
    for _ in range(3):
        driver.wait(1.0)
        driver.answer(driver.requests[0])
        told(driver, "its hash is another")
    (warning,) = driver.warnings
    assert "does not read back: its hash is another" in warning.message
    driver.answer_all()
    assert chosen.index in driver.in_state(SampleState.RESIDENT)


def test_one_of_several_is_set_aside_until_a_record_of_it_reads_back():
    facts = (ExecutorFacts("first"), ExecutorFacts("second"))
    driver = producing(lookahead_batches=4, executors=facts)
    driver.step(ExecutorResized(8, executor=1))
    driver.answer(next(one for one in driver.requests if one.executor == 0))
    first = driver.state.fleet.executors[0]
    told(driver, "its hash is another")
    assert first.breaker.tripped
    driver.answer_all()
    assert first.breaker.tripped, "answers alone prove nothing"
    position = 0
    while not any(one.executor == 0 for one in driver.read_backs):
        driver.read_backs.clear()
        driver.read(position, after_s=1.0)
        driver.answer_all()
        position += 1
    told(driver, "")
    assert not first.breaker.tripped
