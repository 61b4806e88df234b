"""A run that was stopped anywhere goes on exactly: the same batches, in the same order, none twice."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from superdl.super_wire.errors import ConfigError
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import BATCH_SIZE, BATCHES, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes"),
]

Delivered = list[tuple[bytes, int]]

# Four workers ask for eight batches ahead.
WORKERS = [0, 4]


@pytest.fixture(scope="module")
def shared(images: Path) -> Iterator[Stack]:
    running = Stack(arguments=("--workers", str(os.cpu_count() or 1)))
    running.start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def epochs(shared: Stack, images: Path) -> list[Delivered]:
    """Three epochs of a run that nobody stopped."""
    with run_of(shared, images) as run:
        whole = [collect(run.loader) for _ in range(3)]
    for delivered in whole:
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    return whole


def batches(delivered: Delivered, first: int, end: int | None = None) -> Delivered:
    return delivered[first * BATCH_SIZE : None if end is None else end * BATCH_SIZE]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("taken", [0, 1, 5, BATCHES])
def test_a_stateful_loader_goes_on_after_any_batch(
    shared: Stack, images: Path, epochs: list[Delivered], workers: int, taken: int
) -> None:
    with run_of(shared, images, workers=workers, stateful=True) as run:
        before = collect(islice(iter(run.loader), taken)) if taken else []
        state = run.loader.state_dict()
    assert before == batches(epochs[0], 0, taken)
    with run_of(shared, images, state, workers=workers, stateful=True) as run:
        assert before + collect(run.loader) == epochs[0]
        assert collect(run.loader) == epochs[1]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stateful_loader_goes_on_after_a_finished_epoch(
    shared: Stack, images: Path, epochs: list[Delivered], workers: int
) -> None:
    with run_of(shared, images, workers=workers, stateful=True) as run:
        collect(run.loader)
        state = run.loader.state_dict()
    with run_of(shared, images, state, workers=workers, stateful=True) as run:
        assert collect(run.loader) == epochs[1]
        assert collect(run.loader) == epochs[2]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stateful_loader_goes_on_after_an_abandoned_epoch(
    shared: Stack, images: Path, epochs: list[Delivered], workers: int
) -> None:
    with run_of(shared, images, workers=workers, stateful=True) as run:
        collect(islice(iter(run.loader), 3))
        before = collect(islice(iter(run.loader), 4))
        state = run.loader.state_dict()
    assert before == batches(epochs[1], 0, 4), "an abandoned epoch is not gone on with"
    with run_of(shared, images, state, workers=workers, stateful=True) as run:
        assert before + collect(run.loader) == epochs[1]
        assert collect(run.loader) == epochs[2]


@pytest.mark.parametrize("workers", WORKERS)
def test_resumed_twice_in_a_row(shared: Stack, images: Path, epochs: list[Delivered], workers: int) -> None:
    state, delivered = None, []
    for taken in (2, 3, 1):
        with run_of(shared, images, state, workers=workers, stateful=True) as run:
            delivered += collect(islice(iter(run.loader), taken))
            state = run.loader.state_dict()
    for _ in range(2):  # a state is not used up
        with run_of(shared, images, state, workers=workers, stateful=True) as run:
            assert delivered + collect(run.loader) == epochs[0]
            assert collect(run.loader) == epochs[1]


@pytest.mark.parametrize("options", [{"snapshot_every_n_steps": 3}, {"persistent_workers": True}])
@pytest.mark.parametrize("taken", [4, None])
def test_other_ways_of_a_stateful_loader(
    shared: Stack, images: Path, epochs: list[Delivered], options: dict[str, Any], taken: int | None
) -> None:
    how: dict[str, Any] = {"workers": 2, "stateful": True, "options": options}
    with run_of(shared, images, **how) as run:
        collect(run.loader)
        before = collect(islice(iter(run.loader), taken))
        state = run.loader.state_dict()
    with run_of(shared, images, state, **how) as run:
        if taken is not None:
            assert before + collect(run.loader) == epochs[1]
        assert collect(run.loader) == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("consumed", [1, 5, BATCHES])
def test_a_plain_loader_goes_on_where_the_loop_was(
    shared: Stack, images: Path, epochs: list[Delivered], workers: int, consumed: int
) -> None:
    with run_of(shared, images, workers=workers) as run:
        before: Delivered = []
        for count, batch in enumerate(run.loader, 1):
            before += collect([batch])
            if count == consumed:
                state = run.sampler.state_dict(batches_consumed=count)
                break
    with run_of(shared, images, state, workers=workers) as run:
        run.sampler.set_epoch(0)  # as a loop over epochs does
        assert before + collect(run.loader) == epochs[0]
        run.sampler.set_epoch(1)
        assert collect(run.loader) == epochs[1]


def test_between_epochs_a_plain_loaders_state_needs_no_count(
    shared: Stack, images: Path, epochs: list[Delivered]
) -> None:
    with run_of(shared, images, workers=2) as run:
        collect(run.loader)
        state = run.sampler.state_dict()
    with run_of(shared, images, state, workers=2) as run:
        assert collect(run.loader) == epochs[1]


@pytest.mark.parametrize("consumed", [1, 4, 9])
def test_out_of_order_every_sample_comes_once(shared: Stack, images: Path, consumed: int) -> None:
    with run_of(shared, images, workers=2, in_order=False) as run:
        before = collect(islice(iter(run.loader), consumed))
        state = run.sampler.state_dict(batches_consumed=consumed)
    with run_of(shared, images, state, in_order=False) as run:
        assert_exactly_once(before + collect(run.loader), expected_pixels(images, resize=SIDE, crop=SIDE))


def test_the_state_of_another_dataset_is_refused(shared: Stack, images: Path, tmp_path: Path) -> None:
    with run_of(shared, images) as run:
        collect(islice(iter(run.loader), 1))
        state = run.sampler.state_dict(batches_consumed=1)
    with run_of(shared, write_images(tmp_path / "images", 150)) as run:
        here = run.sampler.state_dict()["fingerprint"]
        with pytest.raises(ConfigError, match=f"'{state['fingerprint']}' in the state and '{here}' here"):
            run.sampler.load_state_dict(state)
        assert len(collect(run.loader)) == 150, "nothing has changed by that"
