"""The background thread: pages ahead of the trainer, errors where they belong, signs of life, an end."""

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
from tests.sampler.scripted_coordinator import planned_ids
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


def test_an_epoch_comes_whole_and_as_planned(coordinator, make_pager):
    coordinator.script.batches = 200
    coordinator.script.page_batches = 7  # replies may hold less than was asked for
    pager = make_pager()
    buffer = pager.begin(PlanPosition(5, 190))
    batches = [pager.take(buffer) for _ in range(10)]
    assert pager.take(buffer) is None
    assert pager.take(buffer) is None
    assert [batch.position for batch in batches] == list(range(190, 200))
    for batch in batches:
        assert batch.sample_ids == planned_ids(0, 5, batch.position, 2)
        assert (batch.epoch, batch.rank, len(batch), batch.label_dtype) == (5, 0, 2, "int64")
        assert batch.cache == "unix:///nowhere/redis.sock"
        assert batch.keys == (f"{batch.position}/0.jpg", f"{batch.position}/1.jpg")


def test_pages_are_asked_ahead_and_the_buffer_is_bounded(coordinator, make_pager):
    coordinator.script.batches = 10_000
    pager = make_pager()
    buffer = pager.begin(PlanPosition(0, 0))
    positions(pager, buffer, 1)
    assert coordinator.count("NextBatches") == 1
    assert len(buffer) == BUFFER_BATCHES - 1
    positions(pager, buffer, PAGE_BATCHES - 1)  # now there is room for a page, and it is asked for unasked
    coordinator.wait_for(lambda: coordinator.count("NextBatches") == 2)
    asked = coordinator.requests("NextBatches")[-1]
    assert (asked.position, asked.count, asked.yielded) == (BUFFER_BATCHES, PAGE_BATCHES, PAGE_BATCHES)


def test_an_error_is_raised_where_a_batch_is_asked_for_and_the_next_demand_tries_again(
    coordinator, make_pager
):
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
def test_a_wrong_page_is_named(coordinator, make_pager, change, reason):
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
def test_a_batch_whose_parts_do_not_agree_is_none(change, reason):
    parts = {"batch_id": b"b" * 16, "sample_ids": b"s" * 32, "labels": b"l" * 16, "keys": ["a", "b"]}
    parts |= {"pack_of": b"\2\0\0\0\0\0\0\0", "offsets": bytes(16), "lengths": bytes(8)}
    binding = DatasetBinding(b"d" * 16, b"f" * 16, 1000, (), "int64", "redis://x", "/store")
    ref = planned_batch(pb.Batch(position=7, **parts), ["p", "q"], binding, "job", 0, 0)
    assert ref.places == Places(("q",), b"\1\0\0\0\0\0\0\0", bytes(16), bytes(8))
    with pytest.raises(ValueError, match=reason):
        planned_batch(pb.Batch(position=7, **parts | change), ["p", "q"], binding, "job", 0, 0)


def test_an_abandoned_iteration_is_forgotten(coordinator, make_pager):
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


def test_a_sampler_that_has_nothing_to_ask_shows_that_it_lives(coordinator, make_pager):
    pager = make_pager(heartbeat_s=0.01)
    buffer = pager.begin(PlanPosition(4, 0))
    positions(pager, buffer, 20)  # all 50 were received with the first page
    coordinator.wait_for(lambda: coordinator.requests("NextBatches")[-1].yielded == 20)
    beat = coordinator.requests("NextBatches")[-1]
    assert (beat.epoch, beat.position, beat.count) == (4, 20, 1)
    positions(pager, buffer, 30)
    assert pager.take(buffer) is None
    coordinator.wait_for(lambda: coordinator.requests("NextBatches")[-1].position == 50)


def test_heartbeats_that_fail_disturb_nobody(coordinator, make_pager, caplog):
    pager = make_pager(heartbeat_s=0.01)
    buffer = pager.begin(PlanPosition(0, 0))
    positions(pager, buffer, 1)
    coordinator.script.failures["NextBatches"] = [SourceForbiddenError("no")] * 3
    coordinator.wait_for(lambda: not coordinator.script.failures["NextBatches"])
    assert positions(pager, buffer, 49) == list(range(1, 50))
    asked = coordinator.count("NextBatches")
    coordinator.wait_for(lambda: coordinator.count("NextBatches") > asked)
    assert caplog.text.count("heartbeat") == 1, "said once, not every two seconds"


def test_ready_batches_go_first_and_the_head_is_not_starved(coordinator, make_pager):
    """Which are ready the page says that brings them: where nothing more is answered, they go first too."""
    coordinator.script.resident = {2, 3, *range(5, 50)}
    coordinator.script.failures["NextBatches"] = [None, *[SourceForbiddenError("no")] * 1000]
    pager = make_pager(in_order=False)
    buffer = pager.begin(PlanPosition(0, 0))
    ready_ones = [2, 3, *range(5, REORDER_BATCHES)]
    assert positions(pager, buffer, 50) == [*ready_ones, 0, 8, 1, 9, 10, 11, 4, *range(12, 50)]


def test_statuses_are_asked_again_while_the_head_is_not_ready(coordinator, make_pager):
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


def test_stop_ends_the_thread_also_in_the_middle_of_a_call(coordinator, make_pager):
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
