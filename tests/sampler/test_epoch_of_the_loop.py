"""A resumed training loop that does not tell the sampler its epoch is warned; right loops hear nothing."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler, plan_iterator
from superdl.super_dataset import SuperLoader
from tests.sampler.stand_ins import BoundDataset


@pytest.fixture
def make(coordinator, monkeypatch):
    monkeypatch.setattr(plan_iterator, "_looked", False)  # as in a new process
    made = []

    def make(*, shuffle=True):
        made.append(
            SuperSampler(BoundDataset(), batch_size=2, shuffle=shuffle, coordinator=coordinator.address)
        )
        return made[-1]

    yield make
    for sampler in made:
        sampler.close()


def train_from(start_epoch, sampler, loader, *, distributed=False):
    """A script's loop: it names epochs only if distributed."""
    for epoch in range(start_epoch, start_epoch + 2):
        if distributed:
            sampler.set_epoch(epoch)
        train_one_epoch(loader)


def train_one_epoch(loader):
    for _ in loader:
        pass


WARNING = "the training loop is at epoch=3, and its SuperSampler begins epoch 0"


@pytest.mark.parametrize("workers", [None, 0, 1])
def test_a_resumed_loop_that_names_no_epoch_is_told_once(make, caplog, workers):
    sampler = make()
    loader = SuperLoader(BoundDataset(), sampler)
    if workers is not None:
        loader = DataLoader(BoundDataset(), sampler=sampler, batch_size=None, num_workers=workers)
    train_from(3, sampler, loader)
    assert caplog.text.count("the training loop is at") == 1
    assert WARNING in caplog.text


def evaluated_before(make, sampler):
    list(make(shuffle=False))


def resumed(make, sampler):
    other = make()
    other.set_epoch(3)
    sampler.load_state_dict(other.state_dict())


def named(make, sampler):
    sampler.set_epoch(3)


@pytest.mark.parametrize(
    ("start", "distributed", "before", "warned"),
    [
        (3, False, evaluated_before, True),
        (0, False, None, False),
        (1, False, None, False),  # counts from 1
        (3, True, None, False),
        (3, False, resumed, False),
        (3, False, named, False),
    ],
)
def test_right_loops_are_told_nothing(make, caplog, start, distributed, before, warned):
    sampler = make()
    if before is not None:
        before(make, sampler)
    train_from(start, sampler, sampler, distributed=distributed)
    assert (WARNING in caplog.text) == warned
    assert warned or not caplog.text
