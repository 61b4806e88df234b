"""Faults in mid-epoch: each sample comes once all the same, in plan order, right; or a typed error comes."""

import os
import random
import re
import shutil
import signal
import threading
import time
from functools import partial
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import DataLoader

from superdl import Recipe, SuperDataset, SuperLoader, SuperMix, SuperSampler
from superdl.super_wire.errors import ReadTimeoutError
from tests.fixtures.cut_network import Cut, CutNetwork
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect, train
from tests.super_dataset.stored_batches import bound_dataset, ref_of, stored
from tests.super_dataset.stored_batches import images as random_images

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
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


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("fault", [restart_cache, flush_cache, restart_coordinator, kill_a_function])
def test_the_epoch_goes_on(restarted_stack, images, fault, workers):
    disturb = dict.fromkeys((5, 20), partial(fault, restarted_stack))
    train(restarted_stack, images, disturb=disturb, workers=workers, figures=False)


def drawn(dataset):
    return dataset, {"weights": 1.0 + np.arange(SIZE), "repeats": 2, "batch_size": 2, "shuffle": True}


def mixed(dataset):
    other = SuperDataset(dataset.source, Recipe.image(resize=SIDE + 8, crop=SIDE))
    return SuperMix({dataset: 0.9, other: 0.1}), {"batch_size": 1, "shuffle": True}


def ordered(dataset):
    return dataset, {"sampler": random.Random(1).choices(range(SIZE), k=200), "batch_size": 2}


@pytest.mark.parametrize("plan", [drawn, mixed, ordered])
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


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_restarted_coordinator_goes_on_with_the_catalog_in_its_state(images, tmp_path, workers):
    source = tmp_path / "source"
    shutil.copytree(images, source)
    expected = expected_pixels(source, resize=SIDE, crop=SIDE)
    with Stack(arguments=("--state", str(tmp_path / "state"), "--catalog-max-age-s", "0.001")) as stack:
        dataset = SuperDataset(source.as_uri(), RECIPE)
        with SuperSampler(dataset, batch_size=4, shuffle=True, seed=1, coordinator=stack.address) as sampler:
            loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)
            delivered = []
            for number, batch in enumerate(loader):
                if number == 5:
                    first = next(source.glob("*/*"))
                    shutil.copy(first, first.with_stem("new"))
                    restart_coordinator(stack)
                    flush_cache(stack)
                delivered += collect([batch])
        assert_exactly_once(delivered, expected)
        with SuperSampler(dataset, batch_size=1, shuffle=True, coordinator=stack.address) as sampler:
            assert len(sampler) == len(expected) + 1


def test_without_a_coordinator_the_wait_is_bounded_and_explained(restarted_stack, images):
    dataset = SuperDataset(images.as_uri(), RECIPE, read_timeout=1.0)
    with SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=restarted_stack.address) as sampler:
        ref = next(iter(sampler))
        restarted_stack.kill_coordinator()
        restarted_stack.valkey.client().flushall()
        with pytest.raises(
            ReadTimeoutError, match=rf"{ref.batch_id.hex()}(.|\n)*4 samples(.|\n)*coordinator"
        ):
            dataset[ref]
        restarted_stack.start_coordinator()


# ---------------------------------- the network between trainer and coordinator is cut for some seconds

CUT_AT = 10  # the sampler has at most 64 of the 150 batches by then


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
    # Longer than the deadline of one call:
    pytest.param(Cut.SILENT, 12.0, False, 0, id="long", marks=pytest.mark.slow),
    # Connections that were open are lost without a word, as where a firewall forgets them:
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
    assert not all(while_cut), "or this test shows nothing: the epoch ended before the cut did"


# ----------------------------------------------------- a worker process of the DataLoader is killed

LAST = 30
WAIT_S = 30.0


class DieAt:
    """A transform that kills its process in the batch after the last, once that has arrived: so nothing of
    this worker is on its way, which torch would tell by another error.
    """

    def __init__(self, arrived):
        self.arrived = arrived

    def __call__(self, images, labels, info):
        if info.epoch == 0 and info.position == LAST + 1:
            deadline_s = time.monotonic() + WAIT_S
            while not self.arrived.exists() and time.monotonic() < deadline_s:
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        return images, labels


def test_a_killed_worker_is_told_and_the_next_loader_goes_on(shared_stack, images, tmp_path):
    """Torch tells at once, or within the five seconds after which it looks."""
    dataset = SuperDataset(images.as_uri(), RECIPE, transform=DieAt(tmp_path / "arrived"))
    whole = SuperDataset(images.as_uri(), RECIPE)
    how = {"batch_size": 2, "shuffle": True, "seed": 1, "coordinator": shared_stack.address}
    before = []
    with SuperSampler(dataset, **how) as sampler:
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*\)") as caught:
            read_on(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2), before, tmp_path)
        said = f"{caught.value} {caught.value.__cause__}"
        assert re.search("is killed by signal: Killed", said), said
        epoch_1 = collect(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2))
    with SuperSampler(whole, **how) as sampler:
        epoch_0 = collect(DataLoader(whole, sampler=sampler, batch_size=None, num_workers=2))
    for delivered in (epoch_0, epoch_1):
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    assert before == epoch_0[: 2 * (LAST + 1)]


def read_on(loader, delivered, directory):
    for number, batch in enumerate(loader):
        delivered += collect([batch])
        if number == LAST:
            (directory / "arrived").touch()


@pytest.mark.slow
def test_whenever_a_worker_is_killed_torch_s_own_error_comes(valkey):
    """Forty kills at random instants: while a worker reads, waits for a sample or hands a batch over."""
    there = [stored(valkey, random_images(16, 64, seed=n), position=n) for n in range(12)] * 60
    missing = ref_of(16, valkey.unix_url, position=99)
    for seed in range(40):
        chance = random.Random(seed)
        refs = [*there[: chance.choice([5, len(there), len(there)])], missing]
        dataset = bound_dataset(read_timeout=1.0)  # what waits on when the other worker is killed ends soon
        batches = iter(DataLoader(dataset, sampler=refs, batch_size=None, num_workers=2, prefetch_factor=8))
        killer = threading.Timer(chance.uniform(0, 0.2), chance.choice(batches._workers).kill)
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*\) (exited unexp|is killed by)"):
            read_while(killer, batches)
        killer.join()


def read_while(killer, batches):
    killer.start()
    for _ in batches:
        pass
