"""``python -P -m superdl.coordinator`` as a process with real functions, read by a script: records, pressure,
loss, the end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest

from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from superdl.super_wire.ids import split_ids
from superdl.super_wire.keys import cache_key, report_stream
from superdl.super_wire.protocol import PROTOCOL_VERSION
from superdl.super_wire.read_report import ReadReport
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import unpack
from tests.fixtures.images import independent_decode, write_images
from tests.fixtures.stack import END_TIMEOUT_S, Stack
from tests.fixtures.valkey import Valkey, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ_TIMEOUT_S = 60.0
PAUSE_S = 0.01
BATCH = 10


class Reader:
    """One rank, as sampler and dataset would act together: pages, GETs, reports, bounded patience."""

    def __init__(self, stack: Stack, source: Path, *, side: int, seed: int = 1) -> None:
        self.stack, self.side, self.source = stack, side, source
        self.seed = seed
        self.misses = 0
        self.oom = 0

    def open(self) -> None:
        """Register and open, as a new sampler does, and as one does whose coordinator was restarted."""
        with self._stub() as stub:
            dataset = stub.RegisterDataset(
                pb.RegisterDatasetRequest(
                    protocol_version=PROTOCOL_VERSION,
                    source=self.source.as_uri(),
                    recipe=Recipe.image(resize=self.side, crop=self.side).json,
                    run_id="run",
                )
            )
            while not dataset.ready:
                dataset = stub.GetDataset(pb.GetDatasetRequest(dataset_id=dataset.dataset_id, wait_s=10.0))
            job = pb.OpenJobRequest(dataset_id=dataset.dataset_id, job="job", batch_size=BATCH, replicas=1)
            job.seed, job.shuffle = self.seed, True
            self.batches = stub.OpenJob(job).batches_per_epoch

    def page(self, epoch: int, position: int, **changes: Any) -> pb.Page:
        with self._stub() as stub:
            asked = pb.NextBatchesRequest(
                job="job", epoch=epoch, position=position, yielded=position, **changes
            )
            asked.count = asked.count or 4
            page: pb.Page = stub.NextBatches(asked)
            return page

    def stats(self) -> pb.JobStatsList:
        with self._stub() as stub:
            answer: pb.JobStatsList = stub.GetJobStats(pb.GetJobStatsRequest())
            return answer

    def read_epoch(self, epoch: int, start: int = 0, stop: int | None = None) -> dict[str, bytes]:
        """All records of an epoch, by key."""
        found: dict[str, bytes] = {}
        for position in range(start, self.batches if stop is None else stop):
            (batch, *_) = self.page(epoch, position, with_keys=True).batches
            found |= dict(zip(batch.keys, self.read(batch, epoch), strict=True))
        return found

    def read(self, batch: pb.Batch, epoch: int = 0) -> list[bytes]:
        """The records of a batch; what is missing is reported and waited for."""
        keys = [cache_key(one) for one in split_ids(batch.sample_ids)]
        deadline = time.monotonic() + READ_TIMEOUT_S
        with self.stack.valkey.client() as client:
            records = client.mget(keys)
            hits = sum(record is not None for record in records)
            self.misses += len(keys) - hits
            while None in records:
                missed = tuple(place for place, record in enumerate(records) if record is None)
                self._report(client, batch, epoch, hits, missed)
                assert time.monotonic() < deadline, (
                    f"{len(missed)} samples are missing: {self.stack.log.read_text()}"
                )
                time.sleep(PAUSE_S)  # a reader's bounded backoff
                records = client.mget(keys)
            self._report(client, batch, epoch, hits, ())
        return records

    def _report(self, client: Any, batch: pb.Batch, epoch: int, hits: int, missed: tuple[int, ...]) -> None:
        samples = len(batch.sample_ids) // 16
        report = ReadReport(0, epoch, batch.position, samples, hits, 0, 0, 0, 0, 1, int(not missed), missed)
        client.xadd(report_stream("job"), report.to_fields(), maxlen=1000)

    @contextmanager
    def _stub(self) -> Iterator[CoordinatorStub]:
        with grpc.insecure_channel(self.stack.address) as channel:
            yield CoordinatorStub(channel)


@pytest.fixture
def forty(tmp_path: Path) -> Path:
    return write_images(tmp_path, 40)


def assert_right(found: dict[str, bytes], source: Path, side: int) -> None:
    """Every file was found, with the pixels that an independent decode gives."""
    assert sorted(found) == sorted(str(path.relative_to(source)) for path in source.glob("*/*.jpg"))
    for key, record in found.items():
        _, array = unpack(record)
        assert (array == independent_decode(source / key, resize=side, crop=side)).all()


def test_every_sample_becomes_a_record_with_the_right_pixels(stack: Stack, forty: Path) -> None:
    reader = Reader(stack, forty, side=32)
    reader.open()
    assert_right(reader.read_epoch(0), forty, 32)
    second = reader.read_epoch(1)
    assert_right(second, forty, 32)
    with stack.valkey.client() as client:
        assert len(client.keys("super:r1:*")) == 40


@pytest.mark.parametrize("loss", ["restart", "flush", "some keys", "garbage"])
def test_what_the_cache_lost_is_produced_again(stack: Stack, forty: Path, loss: str) -> None:
    reader = Reader(stack, forty, side=32)
    reader.open()
    reader.read_epoch(0)
    with stack.valkey.client() as client:
        if loss == "restart":
            stack.valkey.restart_empty()
        elif loss == "flush":
            client.flushall()
        elif loss == "some keys":
            client.delete(*sorted(client.keys("super:r1:*"))[::3])
        else:
            for key in sorted(client.keys("super:r1:*"))[::3]:
                client.delete(key)
                client.rpush(key, "no string at all")
                client.pexpire(key, 1)
    assert_right(reader.read_epoch(1), forty, 32)
    assert reader.misses > 0


@pytest.fixture
def pressed() -> Iterator[Stack]:
    """A cache of 8 MB, of which 6 are for records."""
    stack = Stack(maxmemory="8mb", arguments=("--workers", "2"))
    stack.start()
    yield stack
    stack.close()


def assert_never_full(valkey: Valkey) -> None:
    with valkey.client() as client:
        assert client.info("memory")["used_memory_peak"] <= client.info("memory")["maxmemory"]
        assert "errorstat_OOM" not in client.info("errorstats")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of 49 kB each, 24 MB in all: four times the budget of ``pressed``."""
    return write_images(tmp_path_factory.mktemp("large"), 500, side=128)


def test_a_dataset_of_four_times_the_budget_is_read_within_it(pressed: Stack, large: Path) -> None:
    reader = Reader(pressed, large, side=128)
    reader.open()
    for epoch in range(2):
        assert len(reader.read_epoch(epoch)) == 500
    assert reader.stats().cache.dropped_samples > 0
    assert_never_full(pressed.valkey)


def test_a_coordinator_that_takes_a_full_cache_over_goes_on(pressed: Stack, large: Path) -> None:
    reader = Reader(pressed, large, side=128)
    reader.open()
    found = reader.read_epoch(0, stop=25)
    pressed.kill_coordinator()
    pressed.start_coordinator()
    reader.open()
    found |= reader.read_epoch(0, start=25)
    assert len(found) == 500
    assert len(reader.read_epoch(1)) == 500
    assert_never_full(pressed.valkey)


def test_a_cache_full_of_records_of_another_dataset_is_used_all_the_same(
    pressed: Stack, large: Path, tmp_path: Path
) -> None:
    earlier = Reader(pressed, large, side=128)
    earlier.open()
    earlier.read_epoch(0)
    pressed.kill_coordinator()
    pressed.start_coordinator()
    other = write_images(tmp_path, 200, side=128, seed=7)
    reader = Reader(pressed, other, side=128)
    reader.open()
    for epoch in range(2):
        assert len(reader.read_epoch(epoch)) == 200
    assert_never_full(pressed.valkey)


def test_sigterm_drains_while_functions_work(forty: Path) -> None:
    stack = Stack(arguments=("--workers", "1", "--request-samples", "1"))
    stack.start()
    try:
        Reader(stack, forty, side=32).open()
        assert stack.process is not None
        family = psutil.Process(stack.process.pid).children(recursive=True)
        stack.process.send_signal(signal.SIGTERM)
        stack.process.communicate(timeout=END_TIMEOUT_S)
        assert stack.process.returncode == 0
        _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
        assert not alive
        with stack.valkey.client() as client:
            assert not client.exists("super:lock")
    finally:
        stack.close()


def coordinator(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "superdl.coordinator", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--listen", "0.0.0.0:50051"], "beyond loopback a coordinator needs TLS"),
        (["--cache", "redis://:secret@127.0.0.1"], "SUPER_CACHE_PASSWORD"),
        (["--workers", "0"], "workers is from 1"),
        (["--cache-bytes", "many"], "cache_bytes is a size"),
        (["--log-level", "chatty"], "log_level is one of"),
        (["--config", "/nowhere/coordinator.toml"], "/nowhere/coordinator.toml cannot be read"),
        (["--executor", "rya"], "executor is one of local"),
        (["--exit-with-stdin"], "needs a pipe or a terminal as standard input"),
    ],
)
def test_wrong_settings_are_told_in_one_line(arguments: list[str], reason: str) -> None:
    ended = coordinator(*arguments)
    assert ended.returncode == 2
    assert reason in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_what_cannot_be_listened_on_is_told(stack: Stack, tmp_path: Path) -> None:
    valkey = Valkey()
    valkey.start()
    precious = tmp_path / "precious.txt"
    precious.write_text("not a socket")
    try:
        for listen in (stack.address, f"unix:{precious}", f"unix:{tmp_path}/no/such/folder.sock"):
            ended = coordinator("--listen", listen, "--cache", valkey.unix_url)
            assert ended.returncode == 2
            assert f"cannot listen on {listen}" in ended.stderr
            assert "Traceback" not in ended.stderr
        assert precious.read_text() == "not a socket"
        Reader(stack, tmp_path, side=32).stats()  # whose socket it is still answers
    finally:
        valkey.close()


def test_a_taken_port_is_told() -> None:
    valkey = Valkey()
    valkey.start()
    try:
        ended = coordinator("--listen", f"127.0.0.1:{valkey.port}", "--cache", valkey.url)
        assert ended.returncode == 2
        assert f"cannot listen on 127.0.0.1:{valkey.port}" in ended.stderr
    finally:
        valkey.close()


def test_functions_that_decode_otherwise_than_the_cache_was_filled_are_refused(stack: Stack) -> None:
    assert stack.process is not None
    stack.kill_coordinator()
    with stack.valkey.client() as client:
        client.set("super:golden", "00" * 16)
    ended = coordinator("--listen", stack.address, "--cache", stack.valkey.unix_url, "--owner", "test")
    assert ended.returncode == 2
    assert "use one version of SUPER and Pillow, or empty it" in ended.stderr


def test_a_wrong_password_ends_it_at_once() -> None:
    valkey = Valkey()
    valkey.start()
    try:
        with valkey.client() as client:
            client.config_set("requirepass", "right")
        ended = coordinator("--listen", f"127.0.0.1:{free_port()}", "--cache", valkey.unix_url)
        assert ended.returncode == 1
        assert f"the cache at {valkey.unix_url} refuses" in ended.stderr
    finally:
        valkey.close()


def test_a_coordinator_that_lost_its_cache_to_another_ends(stack: Stack) -> None:
    assert stack.process is not None
    with stack.valkey.client() as client:
        client.set("super:lock", "another")
    stack.process.wait(END_TIMEOUT_S)
    stack.process.communicate()  # closes our end of its stdin
    assert stack.process.returncode == 1
    assert "another coordinator owns the cache" in stack.log.read_text()
