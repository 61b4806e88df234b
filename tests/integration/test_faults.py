"""Faults in mid-epoch: each sample still comes once, in plan order and correct, or a typed error comes."""

import os
import random
import re
import shutil
import signal
import threading
from functools import partial
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import DataLoader

from superdl import Recipe, SuperDataset, SuperLoader, SuperMix, SuperSampler
from superdl.super_wire.errors import ReadTimeoutError
from tests.fixtures.cut_network import Cut, CutNetwork
from tests.fixtures.images import CLASSES, SIDE
from tests.fixtures.stack import Stack
from tests.fixtures.workers import until
from tests.integration.delivery import RECIPE, assert_exactly_once, collect, reading, train

SIZE = 150


def restart_cache(stack):
    stack.valkey.restart_empty()


def flush_cache(stack):
    stack.valkey.client().flushall()


def restart_coordinator(stack):
    stack.kill_coordinator()
    stack.start_coordinator()


def kill_a_function(stack):
    stack.functions()[0].kill()


def test_the_epoch_goes_on(restarted_stack, images):
    faults = {
        4: kill_a_function,
        11: restart_cache,
        18: flush_cache,
        25: restart_coordinator,
        32: restart_cache,
    }
    disturb = {number: partial(fault, restarted_stack) for number, fault in faults.items()}
    train(restarted_stack, images, disturb=disturb, workers=2, figures=False)


def drawn(dataset):
    return dataset, {"weights": 1.0 + np.arange(SIZE), "repeats": 2, "batch_size": 2, "shuffle": True}


def mixed(dataset):
    other = SuperDataset(dataset.source, Recipe.image(resize=SIDE + 8, crop=SIDE))
    return SuperMix({dataset: 0.9, other: 0.1}), {"batch_size": 1, "shuffle": True}


def ordered(dataset):
    return dataset, {"sampler": random.Random(1).choices(range(SIZE), k=200), "batch_size": 2}


def of_classes(dataset):
    classes = ("ape", *reversed(CLASSES))
    return SuperDataset(dataset.source, RECIPE, classes=classes), {"batch_size": 2, "shuffle": True}


@pytest.mark.parametrize("plan", [drawn, mixed, ordered, of_classes])
def test_a_coordinator_that_forgot_everything_goes_on_with_the_same_plan(restarted_stack, images, plan):
    dataset, how = plan(SuperDataset(images.as_uri(), RECIPE))
    with (
        SuperSampler(dataset, coordinator=restarted_stack.address, **how) as sampler,
        SuperLoader(dataset, sampler) as loader,
    ):
        whole = [collect(loader) for _ in range(2)]
        sampler.set_epoch(0)
        iterator = iter(loader)
        before = collect(islice(iterator, 2))
        restart_coordinator(restarted_stack)
        assert [before + collect(iterator), collect(loader)] == whole


def test_a_restarted_coordinator_goes_on_with_the_catalog_in_its_state(images, expected, tmp_path):
    source = shutil.copytree(images, tmp_path / "source")
    with Stack(arguments=("--state", str(tmp_path / "state"), "--catalog-max-age-s", "0.001")) as stack:
        with reading(source.as_uri(), stack.address) as (_, loader):
            delivered = []
            for number, batch in enumerate(loader):
                if number == 5:
                    first = next(source.glob("*/*"))
                    shutil.copy(first, first.with_stem("new"))
                    restart_coordinator(stack)
                    flush_cache(stack)
                delivered += collect([batch])
        assert_exactly_once(delivered, expected)
        with reading(source.as_uri(), stack.address, batch_size=1) as (sampler, _):
            assert len(sampler) == SIZE + 1


def test_without_a_coordinator_the_wait_is_bounded_and_explained(restarted_stack, images):
    dataset = SuperDataset(images.as_uri(), RECIPE, read_timeout=1.0)
    with SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=restarted_stack.address) as sampler:
        ref = next(iter(sampler))
        restarted_stack.kill_coordinator()
        flush_cache(restarted_stack)
        with pytest.raises(
            ReadTimeoutError, match=rf"{ref.batch_id.hex()}(.|\n)*4 samples(.|\n)*coordinator"
        ):
            dataset[ref]
        restarted_stack.start_coordinator()


# ---------------------------------- the network between trainer and coordinator is cut for some seconds

CUT_AT = 10  # the sampler then holds at most 64 of the 150 batches


@pytest.fixture(scope="module")
def tcp_stack():
    with Stack(tcp=True) as running:
        yield running


@pytest.fixture
def network(tcp_stack):
    between = CutNetwork(tcp_stack.address)
    yield between
    between.close()


CUTS = [
    pytest.param(Cut.REFUSING, 2.0, False, 0, id="refusing"),
    pytest.param(Cut.SILENT, 2.0, False, 2, id="silent"),
    # Longer than the deadline of a single call:
    pytest.param(Cut.SILENT, 12.0, False, 0, id="long", marks=pytest.mark.slow),
    # Open connections are dropped silently, as a firewall does:
    pytest.param(Cut.SILENT, 2.0, True, 0, id="forgetful", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("how", "for_s", "losing", "workers"), CUTS)
def test_a_network_that_comes_back_costs_nothing(network, images, how, for_s, losing, workers):
    mended, while_cut = threading.Event(), []

    def mend():
        network.mend(losing=losing)
        mended.set()

    timer = threading.Timer(for_s, mend)

    def cut():
        network.cut(how)
        timer.start()

    later = dict.fromkeys(range(CUT_AT + 1, SIZE), lambda: while_cut.append(not mended.is_set()))
    train(network, images, disturb={CUT_AT: cut} | later, batch_size=1, workers=workers, figures=False)
    timer.join()
    assert not all(while_cut), "the epoch ended before the cut: the test proves nothing"


# ------------------------------------------------------------ a DataLoader worker process is killed

LAST = 30


class DieAt:
    """A transform that kills its process in the batch after ``LAST``, once that has arrived: with nothing in
    transit from this worker, torch raises the expected error.
    """

    def __init__(self, arrived):
        self.arrived = arrived

    def __call__(self, images, labels, info):
        if info.epoch == 0 and info.position == LAST + 1:
            until(self.arrived.exists, 30.0)
            os.kill(os.getpid(), signal.SIGKILL)
        return images, labels


def test_a_killed_worker_is_told_and_the_next_loader_goes_on(shared_stack, images, expected, tmp_path):
    """Torch raises at once, or at its next check within five seconds."""
    how = {"batch_size": 2, "workers": 2}
    before, arrived = [], tmp_path / "arrived"
    with reading(images.as_uri(), shared_stack.address, transform=DieAt(arrived), **how) as (sampler, loader):
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*\)") as caught:
            read_on(loader, before, arrived)
        said = f"{caught.value} {caught.value.__cause__}"
        assert re.search("is killed by signal: Killed", said), said
        epoch_1 = collect(DataLoader(loader.dataset, sampler=sampler, batch_size=None, num_workers=2))
    with reading(images.as_uri(), shared_stack.address, **how) as (_, loader):
        epoch_0 = collect(loader)
    for delivered in (epoch_0, epoch_1):
        assert_exactly_once(delivered, expected)
    assert before == epoch_0[: 2 * (LAST + 1)]


def read_on(loader, delivered, arrived):
    for number, batch in enumerate(loader):
        delivered += collect([batch])
        if number == LAST:
            arrived.touch()
