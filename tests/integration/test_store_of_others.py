"""A directory as store with functions elsewhere: whoever sees it saves and restores what others decode."""

import pytest

from superdl.super_wire.store import DirectoryStore, check_record
from tests.fixtures.stack import Stack
from tests.fixtures.workers import WorkerProcess, until, workers
from tests.integration.delivery import assert_exactly_once, collect, reading, settled_stats

COUNT = 150
SAVED_WITHIN_S = 30.0
ON_LAMBDA = ("--executor", "lambda", "--lambda-warm", "2", "--request-samples", "4")


@pytest.fixture
def on_lambda(lambda_service, photos, valkey, tmp_path):
    """Start a coordinator with an empty cache and functions on Lambda, after stopping the one before."""
    lambda_service.concurrency, started = 2, []

    def start(*arguments):
        for stack in started:
            assert stack.close_coordinator() == 0
        with valkey.client() as client:
            client.flushall()
        store = ("--store", str(tmp_path / "store"), *arguments)
        started.append(Stack(arguments=(*ON_LAMBDA, *store), cache=valkey.url))
        started[-1].start()
        return started[-1]

    yield start
    for stack in started:
        stack.close()


def train(stack, photos, *, straight=False, disturb=lambda _: None):
    """Train one epoch whose readers may see the store. Return its samples and statistics."""
    how = {"batch_size": 8, "straight": straight, "read_timeout": 60}
    with reading(photos, stack.address, **how) as (sampler, loader):
        delivered = []
        for number, batch in enumerate(loader):
            disturb(number)
            delivered += collect([batch])
        return delivered, settled_stats(sampler)


def stored(directory):
    """How many samples the packs hold. Checks each record."""
    store = DirectoryStore.open(directory, create=False, read_only=True)
    found = set()
    for pack, size in store.packs().items():
        for entry in store.read_index(pack, size).entries:
            record = store.read(pack, int(entry["offset"]), int(entry["bytes"]))
            check_record(record, bytes(entry["id"]))
            found.add(bytes(entry["id"]))
    return len(found)


@pytest.mark.slow
def test_after_one_epoch_all_lies_in_packs_and_nothing_is_decoded_again(
    on_lambda, photos, expected, tmp_path, lambda_service
):
    """Even if functions are killed while saving."""

    def kill(number):
        if number in (3, 8, 13):
            for process in stack.functions():
                process.kill()

    stack = on_lambda("--slots", "2")
    delivered, stats = train(stack, photos, disturb=kill)
    assert_exactly_once(delivered, expected)
    assert stats.samples_produced == COUNT
    until(lambda: stored(tmp_path / "store") == COUNT, SAVED_WITHIN_S)
    for straight in (False, True):
        stack = on_lambda("--slots", "2")
        before = len(lambda_service.invocations)
        again, stats = train(stack, photos, straight=straight)
        assert again == delivered
        assert (stats.samples_produced, stats.source_requests) == (0, 0)
        assert stats.samples_restored == (0 if straight else COUNT)
        asked = [one.event for one in lambda_service.invocations[before:] if b"super_request" in one.event]
        assert all(b"preflight-" in event for event in asked)


def test_a_worker_for_the_store_alone_saves_for_functions_on_lambda(on_lambda, photos, expected, tmp_path):
    """A worker that decodes is refused here, as is one that sees another store."""
    store, stack = str(tmp_path / "store"), on_lambda()
    for options, words in (
        ((), "with --store-only"),
        (("--store", store), "with --store-only"),
        (("--store-only", "--store", str(tmp_path)), f"does not see the store {store}"),
    ):
        stranger = WorkerProcess(stack.address, *options)
        assert stranger.ended() == 2
        assert words in stranger.log.read_text()
        stranger.close()
    saver = WorkerProcess(stack.address, "--store-only", "--store", store, slots=2)
    try:
        until(lambda: "connected (slots: 2)" in stack.log.read_text())
        delivered, stats = train(stack, photos)
        assert_exactly_once(delivered, expected)
        assert stats.samples_produced == COUNT
        until(lambda: stored(tmp_path / "store") == COUNT)
        assert [one.slots for one in stats.workers if one.name != "local"] == [2]
    finally:
        saver.close()


def test_workers_that_see_the_directory_keep_what_they_decode_and_restore_it(photos, expected, tmp_path):
    store = str(tmp_path / "store")
    stack = Stack(arguments=("--executor", "workers", "--store", store, "--request-samples", "8"))
    with workers(stack.address, 1, environment={"SUPER_STORE": store}, slots=2):
        stack.start()
        blind = WorkerProcess(stack.address, "--store", str(tmp_path / "elsewhere"), slots=1)
        try:
            until(lambda: "does not see the store" in stack.log.read_text())
            delivered, stats = train(stack, photos)
            assert_exactly_once(delivered, expected)
            assert stats.samples_produced == COUNT
            kept = stored(tmp_path / "store")
            assert 0 < kept <= COUNT
            with stack.valkey.client() as client:
                client.flushall()
            stack.close_coordinator()
            stack.start_coordinator()
            again, stats = train(stack, photos)
            assert again == delivered
            assert kept // 2 < stats.samples_restored <= kept
            assert not (tmp_path / "elsewhere").exists()
        finally:
            blind.close()
            stack.close()
