"""Whole epochs with functions on Lambda: every sample comes once, whatever happens to the functions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import BadSampleError
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.lambda_answers import Answer
from tests.fixtures.stack import END_TIMEOUT_S, Stack
from tests.fixtures.valkey import free_port
from tests.integration.delivery import assert_exactly_once, collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from superdl.sampler.stats import SamplerStats
    from tests.fixtures.lambda_service import LambdaService
    from tests.fixtures.object_store import ObjectStore
    from tests.fixtures.valkey import Valkey

ROOT = Path(__file__).resolve().parents[2]
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
SOURCE = "s3://photos/train"
SMALL_STEPS = ("--request-samples", "4", "--lookahead-batches", "4")
CONCURRENCY = 2  # as many processes as this machine likes

# The real function, but for one invocation that finds the file, which hangs.
HANGING = """
import os, time
from superdl.lambda_prefetch.handler import handler as real
def handler(event, context):
    try:
        os.remove(os.environ["HANG"])
    except FileNotFoundError:
        return real(event, context)
    time.sleep(600)
"""

# The real function, as another version of SUPER.
OTHER_VERSION = """
import superdl.lambda_prefetch.handler as real
real.installed_version = lambda: "9.9.9"
handler = real.handler
"""


@pytest.fixture
def stack(
    lambda_service: LambdaService, object_store: ObjectStore, valkey: Valkey, images: Path
) -> Iterator[Stack]:
    """A coordinator whose functions run on Lambda; ``s3://photos/train`` holds the images."""
    lambda_service.concurrency = CONCURRENCY
    shutil.copytree(images, object_store.directory / "photos" / "train")
    running = Stack(arguments=("--executor", "lambda", "--lambda-warm", "2", *SMALL_STEPS), cache=valkey.url)
    running.start()
    yield running
    running.close()


def train(stack: Stack, images: Path, disturb: Mapping[int, Callable[[], None]]) -> SamplerStats:
    """An epoch at some of whose batches something happens; every sample comes once, with its pixels."""
    dataset = SuperDataset(SOURCE, RECIPE)
    with SuperSampler(dataset, batch_size=4, seed=1, coordinator=stack.address) as sampler:
        delivered = []
        for number, batch in enumerate(DataLoader(dataset, sampler=sampler, batch_size=None)):
            disturb.get(number, lambda: None)()
            delivered.append(batch)
        stats = sampler.job_stats()
    assert_exactly_once(collect(delivered), expected_pixels(images, resize=SIDE, crop=SIDE))
    assert stats.samples_produced >= 150
    return stats


def prefetches(service: LambdaService) -> int:
    """How many requests functions were invoked with."""
    return sum(b"super_request" in invocation.event for invocation in service.invocations)


def test_an_epoch_on_lambda_that_throttles_and_fails(
    stack: Stack, images: Path, lambda_service: LambdaService
) -> None:
    broken = Answer.error(500, "ServiceException", "an internal error")
    stats = train(
        stack,
        images,
        {
            2: lambda: lambda_service.throttle_next(2),
            4: lambda: lambda_service.answer_next(broken),
            6: lambda_service.hang_up_next,
            8: lambda_service.crash_next,
        },
    )
    assert lambda_service.most_at_once <= CONCURRENCY
    assert lambda_service.refused >= 4
    log = stack.log.read_text()
    assert "is throttled (ConcurrentInvocationLimitExceeded): lower lambda_concurrency" in log
    assert "crashed (Runtime.ExitError" in log
    assert stats.retries > 0
    assert 150 / 4 <= stats.invocations <= prefetches(lambda_service)  # some try a source, or go ahead
    assert stats.gb_s > 0
    assert stats.concurrency < stats.capacity == 100  # throttling lowered it


@pytest.mark.slow
def test_a_restart_ends_no_job_whose_samples_are_cached(
    stack: Stack, images: Path, lambda_service: LambdaService
) -> None:
    dataset = SuperDataset(SOURCE, RECIPE)
    with SuperSampler(dataset, batch_size=4, coordinator=stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        first = collect(list(loader))
        lambda_service.deploy(environment={"AWS_SECRET_ACCESS_KEY": "another"})  # cannot read the bucket now
        stack.kill_coordinator()
        stack.start_coordinator()
        sampler.set_epoch(0)
        assert collect(list(loader)) == first
    assert_exactly_once(first, expected_pixels(images, resize=SIDE, crop=SIDE))


@pytest.mark.slow
def test_functions_that_hang_are_ended_by_lambda_and_their_samples_come(
    stack: Stack, images: Path, lambda_service: LambdaService, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    hang = tmp_path / "hang"
    environment = {"HANG": str(hang), "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    lambda_service.deploy(handler="hanging.handler", timeout_s=4.0, environment=environment)
    train(stack, images, {3: hang.touch})
    assert not hang.exists()
    assert "ran out of its own time limit" in stack.log.read_text()


@pytest.mark.slow
def test_a_coordinator_ends_in_time_while_functions_hang(
    stack: Stack, lambda_service: LambdaService, tmp_path: Path
) -> None:
    (tmp_path / "stuck.py").write_text("import time\ndef handler(event, context):\n    time.sleep(600)\n")
    dataset = SuperDataset(SOURCE, RECIPE, read_timeout=2.0)
    with (
        SuperSampler(dataset, batch_size=4, seed=1, coordinator=stack.address) as sampler,
        ThreadPoolExecutor(1) as pool,
    ):
        batches = iter(DataLoader(dataset, sampler=sampler, batch_size=None))
        next(batches)
        environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
        lambda_service.deploy(handler="stuck.handler", timeout_s=600.0, environment=environment)
        reading = pool.submit(list, batches)
        lambda_service.wait_until(
            lambda: (
                all(one.function.handler == "stuck.handler" for one in lambda_service.environments[-2:])
                and lambda_service.busy == CONCURRENCY
            )
        )
        assert stack.process is not None
        stack.process.terminate()
        stack.process.communicate(timeout=END_TIMEOUT_S)
        assert stack.process.returncode == 0, stack.log.read_text()
        assert reading.exception(END_TIMEOUT_S) is not None
    assert lambda_service.busy == CONCURRENCY  # they hang to this day


@pytest.mark.slow
def test_a_function_of_another_version_is_not_read_from(
    stack: Stack, lambda_service: LambdaService, tmp_path: Path
) -> None:
    (tmp_path / "other.py").write_text(OTHER_VERSION)
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    dataset = SuperDataset(SOURCE, RECIPE)
    with SuperSampler(dataset, batch_size=4, seed=1, coordinator=stack.address) as sampler:
        batches = iter(DataLoader(dataset, sampler=sampler, batch_size=None))
        next(batches)
        lambda_service.deploy(handler="other.handler", environment=environment)
        with pytest.raises(BadSampleError, match="is SUPER 9.9.9, the coordinator is SUPER"):
            list(batches)


@pytest.mark.slow
def test_lambda_and_this_machine_give_the_same_bytes(stack: Stack) -> None:
    def epoch(coordinator: str) -> list[tuple[bytes, int]]:
        dataset = SuperDataset(SOURCE, Recipe.image(resize=SIDE, crop=SIDE - 8))
        with SuperSampler(dataset, batch_size=16, seed=1, coordinator=coordinator) as sampler:
            return collect(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=1))

    local = Stack()
    local.start()
    try:
        assert epoch(stack.address) == epoch(local.address)
    finally:
        local.close()


def coordinator(cache: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A coordinator that ends by itself."""
    variables = {f"SUPER_{name.upper()}": value for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, "-P", "-m", "superdl.coordinator", "--executor", "lambda", "--cache", cache],
        env={**os.environ, **variables, "SUPER_LISTEN": f"127.0.0.1:{free_port()}"},
        capture_output=True,
        text=True,
        timeout=END_TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"lambda_function": "no such name!"}, 2, "lambda_function is a function's name, ARN or name:alias"),
        ({"lambda_function": "nobody"}, 2, "the function nobody (http://127.0.0.1:"),
    ],
)
def test_what_is_wrong_is_the_last_line_and_the_exit_code(
    lambda_service: LambdaService, valkey: Valkey, settings: dict[str, str], code: int, words: str
) -> None:
    done = coordinator(valkey.url, **settings)
    assert done.returncode == code
    assert words in done.stderr.splitlines()[-1]
