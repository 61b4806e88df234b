"""The log has each change of state once. The history keeps jobs' statistics, even after a crash."""

import json
import logging
import time
from types import SimpleNamespace

import pytest
import redis

from superdl.coordinator.core import ExecutorFacts, FailureKind, JobClosed, JobOpened, Plan, Prices, Team
from superdl.coordinator.server.history import JobHistory, Watch, read_history
from superdl.main import main as superdl
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.keys import HISTORY_KEY
from tests.coordinator.core.driver import DATASET, Driver
from tests.coordinator.server.test_metrics import read
from tests.fixtures.stack import Stack


@pytest.fixture
def log(caplog):
    """Return the log since the last call, and the fields of its last line."""
    caplog.set_level(logging.INFO)

    def lines():
        messages = [record.getMessage() for record in caplog.records]
        lines.last = caplog.records[-1] if messages else None
        caplog.clear()
        return messages

    return lines


def watched(driver):
    dataset = SimpleNamespace(listing=SimpleNamespace(source="file:///photos"))
    registry = type("Registry", (dict,), {"opened": {DATASET: dataset}})({DATASET: dataset})
    return Watch(SimpleNamespace(core=driver.core, datasets=registry))


def test_jobs_and_ranks_are_logged_once_and_many_ranks_in_one_line(log):
    driver = Driver(lease_s=10.0)
    watch = watched(driver)
    for rank in (0, 1):
        driver.open("a", replicas=2, rank=rank)
    watch.look()
    (opened,) = log()
    assert opened.startswith("job a opened: file:///photos, 64 samples")
    driver.wait(6.0)
    driver.ask(0, 1, job="a", rank=1)
    driver.wait(6.0)
    watch.step()
    assert len(log()) == 1
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
    (lapsed,) = log()
    assert lapsed.startswith("7 ranks: no sign of life")
    assert lapsed.endswith("(a, rank 0, a, rank 1, b0, rank 0 and 4 more)")
    driver.step(JobClosed("b0", 0))
    watch.look()
    assert [line.split(":")[0] for line in log()] == ["job b0 closed"]
    watch.step()
    assert log() == []


def test_throttling_is_logged_once_a_minute_with_its_count_and_so_is_its_end(log):
    driver = Driver(capacity=40, request_samples=1, lease_s=1000.0)
    watch = watched(driver)
    driver.open()
    driver.ask(0, 8)
    watch.step()
    log()
    logged = []
    for refused, pause_s in ((30, 30.0), (1, 31.0), (0, 61.0), (0, 0.0)):
        for request in driver.requests[:refused]:
            driver.fail(request, FailureKind.THROTTLED)
        watch.step()
        logged.append((log(), log.last))
        driver.wait(pause_s)
    name = driver.state.fleet.executors[0].name
    ((first,), record), (within_a_minute, _), ((second,), _), ((last,), _) = logged
    assert (record.executor, within_a_minute) == (name, [])
    assert first.startswith(f"{name} throttled: 30 requests in 60 s")
    assert first.endswith(" instead of 40")
    assert second.startswith(f"{name} throttled: 1 request in 60 s")
    assert last == f"{name} is no longer throttled"


def test_a_team_at_its_cap_is_logged_once_and_so_is_its_return(log):
    facts = (ExecutorFacts("lambda", Prices(invocation=1.0)),)
    driver = Driver(executors=facts, teams=(Team("a", max_usd=1.5), Team("b")), request_samples=4)
    watch = watched(driver)
    driver.step(JobOpened("job", driver.dataset, Plan(64, batch_size=8), 0, team="a"))
    driver.answer_all()
    watch.step()
    assert log()[1].startswith("production has stopped for team a: ")
    watch.step()
    assert log() == []
    driver.state.teams.change([Team("a", max_usd=100.0), Team("b")])
    watch.step()
    assert log() == ["team a may spend again"]


async def test_a_closed_job_stays_in_the_history_and_a_broken_history_starts_over(coordinator, source):
    await coordinator.open(await coordinator.register(source))
    await coordinator.page()
    coordinator.engine.post(read("job", 0, hits=3))
    await coordinator.call("CloseJob", pb.CloseJobRequest(job="job", rank=0))
    assert not (await coordinator.call("GetJobStats", pb.GetJobStatsRequest())).history
    (job,) = (await coordinator.call("GetJobStats", pb.GetJobStatsRequest(history=True))).history
    assert (job.job, job.source, job.batches_read) == ("job", f"file://{source}", 1)
    assert (job.epoch, job.position) == (0, 1)
    assert job.opened_s <= job.closed_s
    await coordinator.cache.set(HISTORY_KEY, b"\xff" * 9)
    again = JobHistory(coordinator.cache)
    await again.load()
    assert not again.jobs


def test_the_history_keeps_the_newest_256_jobs_and_their_last_positions():
    history = JobHistory()
    history.note(pb.JobStats(job="a", source="s" * 9999, epoch=3, position=7, lapsed=True), 1000.0)
    for number in range(255):
        history.note(pb.JobStats(job=f"b{number}"), 1.0, 2.0)
    history.note(pb.JobStats(job="a", batches_read=5), 1000.0, 1010.0)
    history.note(pb.JobStats(job="a"), 1020.0)
    assert len(history.jobs) == 256
    assert next(iter(history.jobs)) == ("b1", 1.0)
    closed = history.jobs["a", 1000.0]
    assert (closed.epoch, closed.position, closed.batches_read, closed.lapsed) == (3, 7, 5, False)
    assert (closed.opened_s, closed.closed_s, len(closed.source)) == (1000.0, 1010.0, 512)


@pytest.mark.parametrize("content", [b"\xff", b"\x00" * 9, b"x" * (2**20 + 1)])
def test_content_that_is_no_history_is_refused(content):
    with pytest.raises(ValueError, match="."):
        read_history(content)
    hostile = [pb.JobStats(job="a", opened_s=opened_s) for opened_s in (float("nan"), -1.0, 1e300)]
    assert read_history(pb.JobStatsList(history=[*hostile, pb.JobStats()]).SerializeToString()) == []


def test_the_history_survives_a_killed_coordinator(valkey, source, capsys):
    with (
        Stack(arguments=("--slots", "1"), cache=valkey.url) as stack,
        redis.Redis.from_url(valkey.url) as cache,
    ):
        dataset = SuperDataset(str(source), Recipe.image(resize=4, crop=4))
        SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=stack.address, job="closed").close()
        with SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=stack.address, job="open"):
            end_s = time.monotonic() + 20
            while len(read_history(cache.get(HISTORY_KEY) or b"")) < 2:
                assert time.monotonic() < end_s
                time.sleep(0.05)  # it is written every other second
            stack.kill_coordinator()
            stack.start_coordinator()
            assert superdl(["stats", "--coordinator", stack.address, "--history", "--json"]) == 0
    history = json.loads(capsys.readouterr().out)["history"]
    assert [job["closed_s"] > 0 for job in history] == [True, False]
