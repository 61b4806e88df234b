"""A run that was stopped anywhere goes on exactly: the same batches, in the same order, none twice."""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.images import SIDE, expected_pixels
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

LEGS = 4
EPOCHS = 2 * LEGS + 1

# Four workers ask for eight batches ahead. What the state of a sampler says after any batch is tested in
# tests/sampler/test_resuming.py.
LOADERS = [
    pytest.param("plain", 0, {}, id="plain"),
    pytest.param("plain", 2, {}, id="plain, workers"),
    pytest.param("stateful", 0, {}, id="stateful"),
    pytest.param("stateful", 4, {}, id="stateful, workers"),
    pytest.param("stateful", 2, {"snapshot_every_n_steps": 3}, id="stateful, few snapshots"),
    pytest.param("stateful", 2, {"persistent_workers": True}, id="stateful, lasting workers"),
    pytest.param("threads", 0, {"prefetch": 4}, id="threads"),
]


@pytest.fixture(scope="module")
def epochs(shared_stack: Stack, images: Path) -> list[Delivered]:
    """The epochs of a run that nobody stopped."""
    with run_of(shared_stack, images) as run:
        whole = [collect(run.loader) for _ in range(EPOCHS)]
    for delivered in whole:
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    return whole


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
@pytest.mark.parametrize(("kind", "workers", "options"), LOADERS)
def test_a_run_goes_on_wherever_the_one_before_was_stopped(
    shared_stack: Stack,
    images: Path,
    epochs: list[Delivered],
    kind: str,
    workers: int,
    options: dict[str, Any],
    seed: int,
) -> None:
    """Runs stop after any batch, at the last one of an epoch, or after the epoch; some abandon an epoch for
    the next. Each is made of the state of the one before, which some take up twice.
    """
    chance = random.Random(f"{kind} {workers} {seed}")
    state: dict[str, Any] | None = None
    epoch = batch = 0
    for _ in range(LEGS):
        for _ in range(chance.choice([1, 1, 2])):
            with run_of(shared_stack, images, state, kind=kind, workers=workers, options=options) as run:
                at = epoch, batch
                for iteration in range(chance.choice([1, 1, 2])):
                    if iteration and at[1]:  # the epoch is abandoned
                        at = (at[0] + 1, 0)
                    if kind == "plain":
                        run.sampler.set_epoch(at[0])  # as a loop over epochs does
                    taken = max(1, chance.choice([1, 3, 5, BATCHES - at[1], BATCHES + 1]))
                    expected = epochs[at[0]][at[1] * BATCH_SIZE : (at[1] + taken) * BATCH_SIZE]
                    assert collect(islice(iter(run.loader), taken)) == expected, (at, taken)
                    ended = at[1] + taken > BATCHES
                    at = (at[0] + 1, 0) if ended else (at[0], at[1] + taken)
                    saved = run.state_dict(None if ended else taken)
        state, (epoch, batch) = saved, at


@pytest.mark.parametrize(
    "consumed", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(9, marks=pytest.mark.slow)]
)
def test_out_of_order_every_sample_comes_once(shared_stack: Stack, images: Path, consumed: int) -> None:
    with run_of(shared_stack, images, workers=2, in_order=False) as run:
        before = collect(islice(iter(run.loader), consumed))
        state = run.sampler.state_dict(batches_consumed=consumed)
    with run_of(shared_stack, images, state, in_order=False) as run:
        assert_exactly_once(before + collect(run.loader), expected_pixels(images, resize=SIDE, crop=SIDE))
