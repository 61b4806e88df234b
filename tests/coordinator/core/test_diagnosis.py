"""Explain to users the life of a batch, why it was late, and thrash."""

import numpy as np
import pytest

from superdl.coordinator.core.events import FailureKind, RecordsStored
from superdl.coordinator.core.journal import Cause
from superdl.coordinator.core.lookahead import headroom_bytes, maxmemory_for
from superdl.coordinator.core.samples import footprint
from tests.coordinator.core.driver import DATASET, RECORD_BYTES, Driver

ALL = tuple(range(8))
TAKEN = int(footprint(np.array([RECORD_BYTES]))[0])


def stalled(driver, position, *, wait_us=1000):
    """Report a batch whose samples were all missing when the reader first looked."""
    driver.read(position, hits=0, wait_us=wait_us)


def driver_under_way(**settings):
    """A job that has read its first batch, with a free slot for each of the next requests."""
    driver = Driver(**{"lookahead_batches": 2, "request_samples": 8, "capacity": 64, **settings})
    driver.open()
    driver.ask(0, 8)
    driver.answer_all()
    driver.read(0)
    driver.answer_all()
    return driver


def busy(fetch_us, decode_us, **facts):
    """Have functions spend this much time on each request while a reader waits."""

    def happens(driver):
        while driver.requests:
            request, times = driver.requests[0], {"fetch_us": fetch_us, "decode_us": decode_us}
            driver.answer(request, **times, duration_us=6000, **facts)

    return happens


def refused(driver):
    driver.fail(driver.requests[0], FailureKind.THROTTLED)
    driver.wait(5.0)


def lost(driver):
    (audit,) = driver.audits
    driver.finish_audit(audit, [0] * 8)


@pytest.mark.parametrize(
    ("read", "position", "before", "happens", "cause", "settings"),
    [
        pytest.param((1, 2), 3, None, busy(100, 5000), Cause.DECODING, {"capacity": 1}, id="decode"),
        pytest.param((1, 2), 3, None, busy(5000, 100), Cause.STORAGE, {"capacity": 1}, id="source"),
        # fetches many objects in parallel while decoding all the time
        pytest.param((1, 2), 3, None, busy(40_000, 4000), Cause.DECODING, {"capacity": 1}, id="both"),
        pytest.param((), 6, None, None, Cause.STARTING, {}, id="not-requested"),
        pytest.param(
            (1, 2), 3, None, busy(1, 9, cold_start=True), Cause.STARTING, {"capacity": 1}, id="cold"
        ),
        pytest.param((1, 2), 3, "store", None, Cause.STORAGE, {"capacity": 1, "store": True}, id="store"),
        pytest.param((1, 2), 3, None, refused, Cause.LIMITS, {"capacity": 2}, id="throttle"),
        pytest.param((1, 2), 3, "crash", lambda driver: driver.wait(60.0), Cause.STORAGE, {}, id="retry"),
        pytest.param((), 1, None, lost, Cause.CACHE, {}, id="lost"),
    ],
)
def test_a_stall_is_attributed_to_its_cause(read, position, before, happens, cause, settings):
    driver = driver_under_way(**settings)
    if before == "store":
        driver.step(RecordsStored(DATASET, np.arange(64), np.ones(64, dtype=np.uint32)))
    for earlier in read:
        driver.read(earlier)
    if before == "crash":
        for request in list(driver.requests):
            driver.fail(request, FailureKind.CRASHED)
    driver.read(position, missed=ALL)
    if happens is not None:
        happens(driver)
    driver.answer_all()
    stalled(driver, position, wait_us=2500)
    job = driver.core.job("job")
    assert job.stalls.batches == {cause: 1}
    assert job.stalls.wait_us == {cause: 2500}
    assert job.stalls.recent[0][:3] == (0, 0, position)
    assert job.counters.stalls == 1


@pytest.mark.parametrize("megabytes", [1, 100, 192, 193, 300, 576, 577, 10_000])
def test_the_advised_server_memory_leaves_the_budget_for_records(megabytes):
    budget_bytes = megabytes * 2**20
    limit = maxmemory_for(budget_bytes)
    assert budget_bytes <= limit - headroom_bytes(limit) <= budget_bytes + 2


def test_samples_read_from_the_store_need_no_cache_memory():
    driver = Driver(size=800, capacity=4, request_samples=8, lookahead_batches=4, store=True)
    driver.open()
    driver.ask(0, 1, sees_store=True)
    assert 800 * TAKEN <= driver.core.needed_bytes <= 850 * TAKEN
    driver.step(RecordsStored(DATASET, np.arange(0, 800, 2), np.ones(400, dtype=np.uint32)))
    assert 400 * TAKEN <= driver.core.needed_bytes <= 425 * TAKEN
    driver.ask(0, 1)
    assert driver.core.needed_bytes >= 800 * TAKEN, "readers elsewhere read everything from the cache"
    driver.ask(0, 1, sees_store=True)
    driver.step(RecordsStored(DATASET, np.arange(1, 800, 2), np.ones(400, dtype=np.uint32)))
    assert driver.core.needed_bytes == 0


def test_the_history_of_a_batch_is_described():
    driver = Driver(size=64, capacity=1, request_samples=8)
    driver.open(shuffle=False)
    driver.ask(0, 2)
    driver.fail(driver.requests[0], FailureKind.THROTTLED)
    driver.wait(1.0)
    driver.read(0, missed=(3,))
    driver.answer_all()
    driver.read(0)
    times_s, texts = zip(*driver.core.history("job", 0, 0, 0), strict=True)
    assert list(times_s) == sorted(times_s)
    assert texts[0].startswith("looked ahead")
    assert "request 1 for 8 of its samples, charged to job" in texts
    assert "it was sent to the sampler" in texts
    assert "request 1 ended: the executor accepts no more requests for now: because" in texts
    assert "a reader was missing 1 of its samples" in texts
    assert texts[-1].startswith("read, with 8 samples")
