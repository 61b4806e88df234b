"""What dies in mid-epoch: the epoch ends all the same, every sample once, in plan order, with its bytes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import ReadTimeoutError
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import END_TIMEOUT_S, Stack
from tests.fixtures.valkey import free_port
from tests.integration.delivery import assert_exactly_once, collect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


def restart_cache(stack: Stack) -> None:
    stack.valkey.restart_empty()


def flush_cache(stack: Stack) -> None:
    stack.valkey.client().flushall()


def restart_coordinator(stack: Stack) -> None:
    stack.kill_coordinator()
    stack.start_coordinator()


def kill_a_function(stack: Stack) -> None:
    stack.functions()[0].kill()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fault", [restart_cache, flush_cache, restart_coordinator, kill_a_function])
def test_the_epoch_goes_on(
    restarted_stack: Stack, images: Path, fault: Callable[[Stack], None], workers: int
) -> None:
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=4, seed=1, coordinator=restarted_stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)
        undisturbed = collect(loader)
        sampler.set_epoch(0)
        disturbed = []
        for number, batch in enumerate(loader):
            if number in {5, 20}:
                fault(restarted_stack)
            disturbed += collect([batch])
        after = collect(loader)
    assert disturbed == undisturbed
    for delivered in (disturbed, after):
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))


def test_without_a_coordinator_the_wait_is_bounded_and_explained(
    restarted_stack: Stack, images: Path
) -> None:
    dataset = SuperDataset(images.as_uri(), RECIPE, read_timeout=1.0)
    with SuperSampler(dataset, batch_size=4, coordinator=restarted_stack.address) as sampler:
        iterator = iter(sampler)
        ref = next(iterator)
        restarted_stack.kill_coordinator()
        restarted_stack.valkey.client().flushall()
        with pytest.raises(
            ReadTimeoutError, match=rf"{ref.batch_id.hex()}(.|\n)*4 samples(.|\n)*coordinator"
        ):
            dataset[ref]
        restarted_stack.start_coordinator()


@pytest.mark.parametrize("ending", ["kill", "end of stdin"])
def test_functions_end_with_their_coordinator(restarted_stack: Stack, ending: str) -> None:
    assert restarted_stack.process is not None
    family = restarted_stack.functions()
    assert family
    if ending == "kill":
        restarted_stack.kill_coordinator()
    else:
        restarted_stack.process.communicate(timeout=END_TIMEOUT_S)
        assert restarted_stack.process.returncode == 0
    _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
    assert not alive
    restarted_stack.start_coordinator()


def coordinator(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # our own coordinator
        [sys.executable, "-P", "-m", "superdl.coordinator", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_one_coordinator_owns_a_cache(restarted_stack: Stack) -> None:
    second = coordinator("--listen", f"127.0.0.1:{free_port()}", "--cache", restarted_stack.valkey.unix_url)
    assert second.returncode == 1
    assert "another coordinator" in second.stderr
    assert restarted_stack.valkey.unix_url in second.stderr


@pytest.mark.slow  # it is waited for, ten seconds
def test_a_coordinator_without_a_cache_ends_and_names_it() -> None:
    address = f"redis://127.0.0.1:{free_port()}"
    alone = coordinator("--listen", f"127.0.0.1:{free_port()}", "--cache", address)
    assert alone.returncode == 1
    assert address in alone.stderr
    assert "Traceback" not in alone.stderr
