"""A run that was stopped anywhere goes on exactly: the same batches, in the same order, none twice."""

from __future__ import annotations

from itertools import islice, product
from typing import TYPE_CHECKING, Any

import pytest

from superdl.super_wire.errors import ConfigError
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import BATCH_SIZE, BATCHES, run_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.stack import Stack

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes"),
]

Delivered = list[tuple[bytes, int]]

# Four workers ask for eight batches ahead. Each value occurs; the whole grids are slow. What the state of a
# sampler says after any batch is tested in tests/sampler/test_resuming.py.
WORKERS = [pytest.param(0, marks=pytest.mark.slow), 4]


def grid(workers: list[int], taken: list[int], quick: set[tuple[int, int]]) -> list[Any]:
    """All pairs, of which the others are slow."""
    return [
        pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow)
        for pair in product(workers, taken)
    ]


@pytest.fixture(scope="module")
def epochs(shared_stack: Stack, images: Path) -> list[Delivered]:
    """Three epochs of a run that nobody stopped."""
    with run_of(shared_stack, images) as run:
        whole = [collect(run.loader) for _ in range(3)]
    for delivered in whole:
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    return whole


def batches(delivered: Delivered, first: int, end: int | None = None) -> Delivered:
    return delivered[first * BATCH_SIZE : None if end is None else end * BATCH_SIZE]


@pytest.mark.parametrize(
    ("workers", "taken"), grid([0, 4], [0, 1, 5, BATCHES], {(0, 1), (0, BATCHES), (4, 0), (4, 5)})
)
def test_a_stateful_loader_goes_on_after_any_batch(
    shared_stack: Stack, images: Path, epochs: list[Delivered], workers: int, taken: int
) -> None:
    with run_of(shared_stack, images, workers=workers, stateful=True) as run:
        before = collect(islice(iter(run.loader), taken)) if taken else []
        state = run.loader.state_dict()
    assert before == batches(epochs[0], 0, taken)
    with run_of(shared_stack, images, state, workers=workers, stateful=True) as run:
        assert before + collect(run.loader) == epochs[0]
        assert collect(run.loader) == epochs[1]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stateful_loader_goes_on_after_a_finished_epoch(
    shared_stack: Stack, images: Path, epochs: list[Delivered], workers: int
) -> None:
    with run_of(shared_stack, images, workers=workers, stateful=True) as run:
        collect(run.loader)
        state = run.loader.state_dict()
    with run_of(shared_stack, images, state, workers=workers, stateful=True) as run:
        assert collect(run.loader) == epochs[1]
        assert collect(run.loader) == epochs[2]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stateful_loader_goes_on_after_an_abandoned_epoch(
    shared_stack: Stack, images: Path, epochs: list[Delivered], workers: int
) -> None:
    with run_of(shared_stack, images, workers=workers, stateful=True) as run:
        collect(islice(iter(run.loader), 3))
        before = collect(islice(iter(run.loader), 4))
        state = run.loader.state_dict()
    assert before == batches(epochs[1], 0, 4), "an abandoned epoch is not gone on with"
    with run_of(shared_stack, images, state, workers=workers, stateful=True) as run:
        assert before + collect(run.loader) == epochs[1]
        assert collect(run.loader) == epochs[2]


@pytest.mark.parametrize("workers", WORKERS)
def test_resumed_twice_in_a_row(
    shared_stack: Stack, images: Path, epochs: list[Delivered], workers: int
) -> None:
    state, delivered = None, []
    for taken in (2, 3, 1):
        with run_of(shared_stack, images, state, workers=workers, stateful=True) as run:
            delivered += collect(islice(iter(run.loader), taken))
            state = run.loader.state_dict()
    for _ in range(2):  # a state is not used up
        with run_of(shared_stack, images, state, workers=workers, stateful=True) as run:
            assert delivered + collect(run.loader) == epochs[0]
            assert collect(run.loader) == epochs[1]


@pytest.mark.parametrize("options", [{"snapshot_every_n_steps": 3}, {"persistent_workers": True}])
@pytest.mark.parametrize("taken", [4, None])
def test_other_ways_of_a_stateful_loader(
    shared_stack: Stack, images: Path, epochs: list[Delivered], options: dict[str, Any], taken: int | None
) -> None:
    how: dict[str, Any] = {"workers": 2, "stateful": True, "options": options}
    with run_of(shared_stack, images, **how) as run:
        collect(run.loader)
        before = collect(islice(iter(run.loader), taken))
        state = run.loader.state_dict()
    with run_of(shared_stack, images, state, **how) as run:
        if taken is not None:
            assert before + collect(run.loader) == epochs[1]
        assert collect(run.loader) == epochs[2]


@pytest.mark.parametrize(
    ("workers", "consumed"), grid([0, 2], [1, 5, BATCHES], {(0, 5), (2, 1), (2, BATCHES)})
)
def test_a_plain_loader_goes_on_where_the_loop_was(
    shared_stack: Stack, images: Path, epochs: list[Delivered], workers: int, consumed: int
) -> None:
    with run_of(shared_stack, images, workers=workers) as run:
        before: Delivered = []
        for count, batch in enumerate(run.loader, 1):
            before += collect([batch])
            if count == consumed:
                state = run.sampler.state_dict(batches_consumed=count)
                break
    with run_of(shared_stack, images, state, workers=workers) as run:
        run.sampler.set_epoch(0)  # as a loop over epochs does
        assert before + collect(run.loader) == epochs[0]
        run.sampler.set_epoch(1)
        assert collect(run.loader) == epochs[1]


def test_between_epochs_a_plain_loaders_state_needs_no_count(
    shared_stack: Stack, images: Path, epochs: list[Delivered]
) -> None:
    with run_of(shared_stack, images, workers=2) as run:
        collect(run.loader)
        state = run.sampler.state_dict()
    with run_of(shared_stack, images, state, workers=2) as run:
        assert collect(run.loader) == epochs[1]


@pytest.mark.parametrize(
    "consumed", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(9, marks=pytest.mark.slow)]
)
def test_out_of_order_every_sample_comes_once(shared_stack: Stack, images: Path, consumed: int) -> None:
    with run_of(shared_stack, images, workers=2, in_order=False) as run:
        before = collect(islice(iter(run.loader), consumed))
        state = run.sampler.state_dict(batches_consumed=consumed)
    with run_of(shared_stack, images, state, in_order=False) as run:
        assert_exactly_once(before + collect(run.loader), expected_pixels(images, resize=SIDE, crop=SIDE))


def test_the_state_of_another_dataset_is_refused(shared_stack: Stack, images: Path, tmp_path: Path) -> None:
    with run_of(shared_stack, images) as run:
        collect(islice(iter(run.loader), 1))
        state = run.sampler.state_dict(batches_consumed=1)
    with run_of(shared_stack, write_images(tmp_path / "images", 150)) as run:
        here = run.sampler.state_dict()["fingerprint"]
        with pytest.raises(ConfigError, match=f"'{state['fingerprint']}' in the state and '{here}' here"):
            run.sampler.load_state_dict(state)
        assert len(collect(run.loader)) == 150, "nothing has changed by that"
