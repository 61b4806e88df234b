"""What closed jobs did is told after they closed, and after the coordinator was killed; and stays bounded."""

from __future__ import annotations

import io
import json
import time

import pytest
import redis
from rich.console import Console

from superdl.coordinator.server.watching import _JOBS_MAX, JobHistory, Watch, read_history
from superdl.main import main as superdl
from superdl.sampler import SuperSampler
from superdl.stats_command import _print_jobs, mapping
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.keys import HISTORY_KEY
from tests.coordinator.server.test_metrics import read
from tests.fixtures.stack import Stack


def test_a_closed_job_is_told_of_as_it_was_and_so_is_one_of_a_coordinator_that_was_killed(run, source):
    async def work(coordinator):
        await coordinator.open(await coordinator.register(source))
        await coordinator.page()
        coordinator.engine.post(read("job", 0, hits=3))
        await coordinator.call("CloseJob", pb.CloseJobRequest(job="job", rank=0))
        assert not (await coordinator.call("GetJobStats", pb.GetJobStatsRequest())).history
        (told,) = (await coordinator.call("GetJobStats", pb.GetJobStatsRequest(history=True))).history
        assert (told.job, told.source, told.batches_read) == ("job", f"file://{source}", 1)
        assert (told.epoch, told.position) == (0, 1)
        assert told.opened_s <= told.closed_s
        # Of one that is open, what was written last is left.
        cache = coordinator.cache
        await coordinator.open(await coordinator.register(source), job="open")
        watch = Watch(coordinator.engine, JobHistory(cache))
        watch.step()
        await watch.history.keep()
        later = JobHistory(cache)
        await later.load()
        assert [(name, one.closed_s) for (name, _), one in later.jobs.items()] == [("open", 0.0)]
        await cache.keep_history(b"\xff" * 9)
        again = JobHistory(cache)
        await again.load()
        assert not again.jobs

    run(work)


def test_it_is_bounded_keeps_the_newest_and_says_where_a_closed_job_stood():
    history = JobHistory()
    history.note(pb.JobStats(job="a", source="s" * 9999, epoch=3, position=7, lapsed=True), 1000.0)
    for number in range(_JOBS_MAX - 1):
        history.note(pb.JobStats(job=f"b{number}"), 1.0, 2.0)
    history.note(pb.JobStats(job="a", batches_read=5), 1000.0, 1010.0)
    history.note(pb.JobStats(job="a"), 1020.0)
    assert len(history.jobs) == _JOBS_MAX
    assert next(iter(history.jobs)) == ("b1", 1.0)
    told = history.jobs["a", 1000.0]
    assert (told.epoch, told.position, told.batches_read, told.lapsed) == (3, 7, 5, False)
    assert (told.opened_s, told.closed_s, len(told.source)) == (1000.0, 1010.0, 512)
    console = Console(file=io.StringIO(), width=500)
    _print_jobs(mapping(pb.JobStatsList(history=[told], cache=pb.CacheStats())), console)
    assert " to 1970-01-0" in console.file.getvalue()


@pytest.mark.parametrize("told", [b"\xff", b"\x00" * 9, b"x" * (2**20 + 1)])
def test_other_bytes_are_refused(told):
    with pytest.raises(ValueError, match="."):
        read_history(told)
    hostile = [pb.JobStats(job="a", opened_s=opened_s) for opened_s in (float("nan"), -1.0, 1e300)]
    assert read_history(pb.JobStatsList(history=[*hostile, pb.JobStats()]).SerializeToString()) == []


def test_a_coordinator_that_was_killed_and_started_again_has_the_history(valkey, source, capsys):
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
    told = json.loads(capsys.readouterr().out)["history"]
    assert [one["closed_s"] > 0 for one in told] == [True, False]
