"""Workers call in: an epoch is exact whatever becomes of them, and of the coordinator that they call."""

import shutil
import signal
import threading

import grpc
import pytest
from torch.utils.data import DataLoader

from superdl import Recipe, SuperDataset, SuperSampler
from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
from superdl.sampler.rpc.connection import CallFailedError, connection_to
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from superdl.super_wire.protocol import PROTOCOL_VERSION, installed_version
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.fixtures.workers import WorkerProcess, until, workers
from tests.integration.delivery import assert_exactly_once, collect

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@pytest.fixture
def bucket(images, object_store):
    shutil.copytree(images, object_store.directory / "photos" / "train")
    return "s3://photos/train"


@pytest.fixture
def stack():
    stack = Stack(arguments=("--executor", "workers"))
    yield stack
    stack.close()


def loader_of(bucket, stack):
    dataset = SuperDataset(bucket, RECIPE, read_timeout=60)
    sampler = SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=stack.address)
    return sampler, DataLoader(dataset, sampler=sampler, batch_size=None)


def test_an_epoch_by_two_workers_of_which_one_is_killed(images, bucket, stack):
    with workers(stack.address, 2, slots=2) as (first, second):
        stack.start()  # they have waited for it, and it for them
        sampler, loader = loader_of(bucket, stack)
        with sampler:
            batches = iter(loader)
            read = [next(batches)]
            first.send(signal.SIGKILL)
            read += batches
            assert_exactly_once(collect(read), expected_pixels(images, resize=SIDE, crop=SIDE))
        second.send(signal.SIGTERM)
        assert second.ended() == 0


def test_workers_call_again_when_the_coordinator_was_killed(images, bucket, stack):
    with workers(stack.address, 1, slots=2):
        stack.start()
        sampler, loader = loader_of(bucket, stack)
        with sampler:
            batches = iter(loader)
            read = [next(batches)]
            stack.kill_coordinator()
            stack.start_coordinator()
            read += batches
            assert_exactly_once(collect(read), expected_pixels(images, resize=SIDE, crop=SIDE))


def test_a_stopped_worker_loses_its_requests_and_another_makes_them(images, bucket, stack):
    with workers(stack.address, 1, slots=2) as (first,):
        stack.start()
        first.send(signal.SIGSTOP)
        sampler, loader = loader_of(bucket, stack)
        with sampler, workers(stack.address, 1, slots=2):
            assert_exactly_once(collect(loader), expected_pixels(images, resize=SIDE, crop=SIDE))


def test_the_end_of_a_run_ends_its_coordinator_and_workers_with_its_code():
    """It is told by a trainer's launcher; a coordinator that is not one run's goes on."""
    with Stack(arguments=("--executor", "local")) as stack, pytest.raises(CallFailedError) as refused:
        connection_to(stack.address).call("EndRun", pb.EndRunRequest(exit_code=7), 10.0)
    assert "--ends-with-run" in str(refused.value)
    stack = Stack(arguments=("--executor", "workers", "--ends-with-run"))
    try:
        with workers(stack.address, 2) as both:
            stack.start()
            until(lambda: stack.log.read_text().count("connected with") == 2)
            connection_to(stack.address).call("EndRun", pb.EndRunRequest(exit_code=7), 10.0)
            assert goodbye_to_a_late_one(stack.address) == 7
            assert stack.process is not None
            stack.process.communicate(timeout=20)
            assert [stack.process.returncode, *(one.ended() for one in both)] == [7, 7, 7]
    finally:
        stack.close()


def goodbye_to_a_late_one(address):
    """The exit code that a worker is told which calls in now."""
    hello = pb.WorkerHello(
        protocol_version=PROTOCOL_VERSION,
        version=installed_version(),
        fingerprint=decoder_fingerprint(),
        slots=1,
    )
    over = threading.Event()

    def says():
        yield pb.FromWorker(hello=hello)
        over.wait()

    with grpc.insecure_channel(address) as channel:
        said = (message for message in CoordinatorStub(channel).Work(says()) if message.HasField("goodbye"))
        try:
            return next(said).goodbye.exit_code
        finally:
            over.set()


@pytest.mark.parametrize(
    ("variables", "words"),
    [({"SUPER_TOKEN": "another-token-of-22-chars"}, "token"), ({}, "token")],
)
def test_a_worker_without_the_token_is_refused(variables, words):
    stack = Stack(
        arguments=("--executor", "workers"), environment={"SUPER_TOKEN": "a-token-of-more-than-16"}, tcp=True
    )
    try:
        with workers(stack.address, 1, environment={"SUPER_TOKEN": "a-token-of-more-than-16"}):
            stack.start()
            stranger = WorkerProcess(stack.address, environment=variables)
            try:
                assert stranger.ended() == 1
                assert words in stranger.log.read_text()
            finally:
                stranger.close()
    finally:
        stack.close()
