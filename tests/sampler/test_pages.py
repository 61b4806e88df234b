"""The background thread: prefetched pages, errors, heartbeats and shutdown."""

import gc
import threading
import weakref

import pytest

from superdl.sampler.pages import REORDER_BATCHES, Pager, planned_batch
from superdl.sampler.prefetch import BUFFER_BATCHES, PAGE_BATCHES, PlanPosition
from superdl.sampler.rpc.client import Client
from superdl.sampler.session import JobSpec, Session
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.batch_ref import DatasetBinding, Places
from superdl.super_wire.errors import CoordinatorError, SourceForbiddenError, UsageError
from tests.sampler.stand_ins import BoundDataset

NO_HEARTBEAT_S = 3600.0


@pytest.fixture
def make_pager(coordinator):
    made = []

    def make(*, in_order=True, heartbeat_s=NO_HEARTBEAT_S):
        client = Client(coordinator.address)
        spec = JobSpec(batch_size=2, seed=0, shuffle=True, drop_last=False, rank=0, num_replicas=1)
        session = Session(client, BoundDataset(), spec, run="run", job=None)
        pager = Pager(session, client, rank=0, in_order=in_order, heartbeat_s=heartbeat_s)
        made.append(pager)
        return pager

    yield make
    for pager in made:
        pager.stop()


def positions(pager, buffer, count):
    return [pager.take(buffer).position for _ in range(count)]


def test_pages_are_fetched_ahead_into_a_bounded_buffer(coordinator, make_pager):
    coordinator.script.batches = 10_000
    pager = make_pager()
    buffer = pager.begin(PlanPosition(0, 0))
    positions(pager, buffer, 1)
    assert coordinator.count("NextBatches") == 1
    assert len(buffer) == BUFFER_BATCHES - 1
    positions(pager, buffer, PAGE_BATCHES - 1)  # now there is room for a page, which is requested
    coordinator.wait_for(lambda: coordinator.count("NextBatches") == 2)
    asked = coordinator.requests("NextBatches")[-1]
    assert (asked.position, asked.count, asked.yielded) == (BUFFER_BATCHES, PAGE_BATCHES, PAGE_BATCHES)


def test_an_error_is_raised_for_the_next_batch_and_then_retried(coordinator, make_pager):
    coordinator.script.failures["NextBatches"] = [SourceForbiddenError("no"), SourceForbiddenError("no")]
    pager = make_pager()
    buffer = pager.begin(PlanPosition(0, 0))
    for _ in range(2):
        with pytest.raises(SourceForbiddenError):
            pager.take(buffer)
    assert positions(pager, buffer, 2) == [0, 1]


@pytest.mark.parametrize(
    ("change", "reason"), [({"shift": 1}, "batch 1 arrived"), ({"page_batches": 0}, "empty")]
)
def test_an_invalid_page_is_reported(coordinator, make_pager, change, reason):
    for name, value in change.items():
        setattr(coordinator.script, name, value)
    pager = make_pager()
    buffer = pager.begin(PlanPosition(0, 0))
    with pytest.raises(CoordinatorError, match=f"epoch 0, position 0: .*{reason}"):
        pager.take(buffer)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sample_ids": b"x" * 31}, "batch 7 with 1 samples must not have 31 bytes"),
        ({"sample_ids": b""}, "0 bytes of sample ids"),
        ({"batch_id": b"b"}, "1 bytes of a batch id"),
        ({"labels": b"l" * 15}, "cannot unpack 15 bytes as the labels of 2 samples"),
        ({"padding": b"p"}, "1 bytes of padding"),
        ({"keys": ["a"]}, "batch 7 with 2 samples must not have 1 keys"),
        ({"pack_of": bytes(4)}, "4 bytes of pack numbers"),
        ({"offsets": bytes(8)}, "8 bytes of offsets"),
        ({"lengths": b""}, "0 bytes of lengths"),
        ({"pack_of": b"\0\0\0\0\3\0\0\0"}, "batch 7: a location refers to pack 3"),
    ],
)
def test_a_batch_with_inconsistent_fields_is_rejected(change, reason):
    parts = {"batch_id": b"b" * 16, "sample_ids": b"s" * 32, "labels": b"l" * 16, "keys": ["a", "b"]}
    parts |= {"pack_of": b"\2\0\0\0\0\0\0\0", "offsets": bytes(16), "lengths": bytes(8)}
    binding = DatasetBinding(b"d" * 16, b"f" * 16, 1000, (), "int64", "redis://x", "/store")
    ref = planned_batch(pb.Batch(position=7, **parts), ["p", "q"], binding, "job", 0, 0)
    assert ref.places == Places(("q",), b"\1\0\0\0\0\0\0\0", bytes(16), bytes(8))
    with pytest.raises(ValueError, match=reason):
        planned_batch(pb.Batch(position=7, **parts | change), ["p", "q"], binding, "job", 0, 0)


def test_an_abandoned_iteration_is_freed(coordinator, make_pager):
    coordinator.script.batches = 10_000
    pager = make_pager(heartbeat_s=0.01)
    buffer = pager.begin(PlanPosition(0, 0))
    positions(pager, buffer, 1)
    forgotten = weakref.ref(buffer)
    del buffer
    asked = coordinator.count("NextBatches")
    coordinator.wait_for(lambda: coordinator.count("NextBatches") > asked + 2)  # the thread lives on
    gc.collect()
    assert forgotten() is None


def test_an_idle_sampler_sends_heartbeats(coordinator, make_pager):
    pager = make_pager(heartbeat_s=0.01)
    buffer = pager.begin(PlanPosition(4, 0))
    positions(pager, buffer, 20)  # all 50 were received with the first page
    coordinator.wait_for(lambda: coordinator.requests("NextBatches")[-1].yielded == 20)
    beat = coordinator.requests("NextBatches")[-1]
    assert (beat.epoch, beat.position, beat.count) == (4, 20, 1)
    positions(pager, buffer, 30)
    assert pager.take(buffer) is None
    coordinator.wait_for(lambda: coordinator.requests("NextBatches")[-1].position == 50)


def test_failed_heartbeats_only_warn(coordinator, make_pager, caplog):
    pager = make_pager(heartbeat_s=0.01)
    buffer = pager.begin(PlanPosition(0, 0))
    positions(pager, buffer, 1)
    coordinator.script.failures["NextBatches"] = [SourceForbiddenError("no")] * 3
    coordinator.wait_for(lambda: not coordinator.script.failures["NextBatches"])
    assert positions(pager, buffer, 49) == list(range(1, 50))
    asked = coordinator.count("NextBatches")
    coordinator.wait_for(lambda: coordinator.count("NextBatches") > asked)
    assert caplog.text.count("heartbeat") == 1, "said once, not every two seconds"


def test_statuses_are_refreshed_while_the_head_is_not_ready(coordinator, make_pager):
    coordinator.script.resident = set()
    pager = make_pager(in_order=False)
    buffer = pager.begin(PlanPosition(0, 0))
    assert positions(pager, buffer, 1) == [0], "nothing is known to be ready: the head goes"
    coordinator.script.resident = {6}
    asked = coordinator.count("NextBatches")
    coordinator.wait_for(lambda: coordinator.count("NextBatches") >= asked + 2)  # so the first was answered
    assert positions(pager, buffer, 1) == [6]
    refresh = coordinator.requests("NextBatches")[-1]
    assert (refresh.with_keys, refresh.position) == (False, 1)
    assert refresh.count <= REORDER_BATCHES


def test_stop_cancels_a_call_in_progress(coordinator, make_pager):
    coordinator.gate.clear()
    pager = make_pager()
    buffer = pager.begin(PlanPosition(0, 0))
    coordinator.wait_for(lambda: coordinator.count("NextBatches"))
    refused = []

    def wait_for_a_batch():
        try:
            pager.take(buffer)
        except UsageError as error:
            refused.append(error)

    trainer = threading.Thread(target=wait_for_a_batch)
    trainer.start()
    pager.stop()
    trainer.join(30)
    assert len(refused) == 1
    assert "superdl-pages" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(UsageError, match="closed"):
        pager.begin(PlanPosition(0, 0))
    pager.stop()
