"""Registering a dataset and opening a job: long listings, other versions, lost coordinators."""

import time
from dataclasses import replace

import pytest

from superdl.sampler.rpc.client import Client
from superdl.sampler.session import MAX_REOPENS, JobSpec, Session
from superdl.super_wire.errors import (
    PlanError,
    ProtocolMismatchError,
    SourceError,
    UnknownJobError,
)
from superdl.super_wire.protocol import PROTOCOL_VERSION
from superdl.super_wire.store import DirectoryStore
from tests.sampler.stand_ins import BoundDataset

SPEC = JobSpec(batch_size=4, seed=-7, shuffle=True, drop_last=False, rank=1, num_replicas=2)


def session(coordinator, dataset=None, spec=SPEC, job=None, **how):
    return Session(Client(coordinator.address), dataset or BoundDataset(), spec, run="run", job=job, **how)


def test_a_store_is_only_used_if_its_id_matches(coordinator, tmp_path):
    ours, other = (DirectoryStore.open(tmp_path / name, create=True) for name in ("ours", "other"))
    for address, store_id, reads_straight, seen in [
        (ours.address, ours.id, True, ours.address),
        (ours.address, ours.id, False, ""),
        (ours.address, other.id, True, ""),
        (str(tmp_path / "of another host"), ours.id, True, ""),
        ("", "", True, ""),
    ]:
        coordinator.script.store, coordinator.script.store_id = address, store_id
        opened = session(coordinator, BoundDataset(reads_straight=reads_straight))
        opened.pages_from(0, 0, 1, yielded=0, with_keys=False)
        assert opened.binding.store == seen
        assert coordinator.requests("NextBatches")[-1].sees_store == bool(seen)


def test_the_first_rank_logs_warnings_once(coordinator, caplog):
    coordinator.script.warnings = ("it lies far away",)
    session(coordinator)
    assert "it lies far away" not in caplog.text
    session(coordinator, spec=replace(SPEC, rank=0))
    assert caplog.text.count("it lies far away") == 1


def test_a_stalled_listing_is_an_error(coordinator):
    coordinator.script.listing = [17] * 100_000
    with pytest.raises(SourceError, match="file:///images is at 17 samples"):
        session(coordinator, listing_silence_s=0.05)
    assert coordinator.count("OpenJob") == 0


def test_another_protocol_version_is_an_error(coordinator):
    coordinator.script.protocol_version = PROTOCOL_VERSION + 1
    with pytest.raises(
        ProtocolMismatchError, match=f"version {PROTOCOL_VERSION}.*speaks version {PROTOCOL_VERSION + 1}"
    ):
        session(coordinator)


def test_drop_last_must_leave_a_batch(coordinator):
    spec = JobSpec(batch_size=501, seed=0, shuffle=True, drop_last=True, rank=0, num_replicas=2)
    with pytest.raises(PlanError, match=r"batch_size=501 on 2 ranks.*1002.*1000"):
        session(coordinator, spec=spec)
    session(coordinator, spec=JobSpec(500, 0, shuffle=True, drop_last=True, rank=0, num_replicas=2))


def test_a_lost_job_is_reopened_at_its_position(coordinator):
    opened = session(coordinator)
    coordinator.jobs.clear()
    coordinator.script.cache = "unix:///elsewhere/redis.sock"
    page = opened.pages_from(3, 17, 2, yielded=15, with_keys=True)
    assert [batch.position for batch in page.batches] == [17, 18]
    assert coordinator.count("RegisterDataset") == coordinator.count("OpenJob") == 2
    assert [request.begins for request in coordinator.requests("RegisterDataset")] == [True, False]
    assert opened.binding.cache == "unix:///elsewhere/redis.sock"
    asked = coordinator.requests("NextBatches")[-1]
    assert (asked.rank, asked.epoch, asked.position, asked.yielded) == (1, 3, 17, 15)
    job = coordinator.requests("OpenJob")[-1]
    assert (job.epoch, job.position) == (3, 15), "looking ahead begins where this rank goes on"


def test_reopening_a_job_is_limited_in_number(coordinator):
    opened = session(coordinator)
    coordinator.script.failures["NextBatches"] = [UnknownJobError("no job")] * 99
    with pytest.raises(UnknownJobError, match=f"{MAX_REOPENS} times"):
        opened.pages_from(0, 0, 1, yielded=0, with_keys=False)
    assert coordinator.count("NextBatches") == MAX_REOPENS


def test_a_progressing_listing_extends_the_time_limit(coordinator):
    opened = session(coordinator, reopening_s=5.0)
    coordinator.jobs.clear()
    coordinator.script.listing = [0, 10, 500, 999]
    assert len(opened.pages_from(0, 0, 1, yielded=0, with_keys=False).batches) == 1
    coordinator.jobs.clear()
    coordinator.calls.clear()
    end_s = time.monotonic() + 5.0
    assert opened.reopen(0, 0, end_s) > end_s


def test_a_changed_source_is_an_error(coordinator):
    opened = session(coordinator)
    coordinator.jobs.clear()
    coordinator.script.fingerprint = b"g" * 16
    with pytest.raises(SourceError, match="file:///images has changed"):
        opened.pages_from(0, 0, 1, yielded=0, with_keys=False)


def test_writing_the_catalog_counts_as_progress(coordinator):
    coordinator.script.listing, coordinator.script.packing = [17] * 500, True
    session(coordinator, listing_silence_s=0.05)
    assert coordinator.count("OpenJob") == 1


def test_reopening_a_job_is_limited_in_time(coordinator):
    opened = session(coordinator, reopening_s=0.0)
    coordinator.script.failures["NextBatches"] = [UnknownJobError("no job")] * 99
    with pytest.raises(UnknownJobError, match=r"lost job .* 1 times in a row.* and 0 s\)"):
        opened.pages_from(0, 0, 1, yielded=0, with_keys=False)
    assert coordinator.count("NextBatches") == 1
