"""The network between trainer and coordinator is cut for some seconds, in mid-epoch, and comes back."""

from __future__ import annotations

import threading

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.cut_network import Cut, CutNetwork
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
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
def test_the_epoch_goes_on(network, images, how, for_s, losing, workers):
    dataset = SuperDataset(images.as_uri(), RECIPE)
    delivered, mended = [], threading.Event()

    def mend():
        network.mend(losing=losing)
        mended.set()

    with SuperSampler(dataset, batch_size=1, shuffle=True, seed=1, coordinator=network.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)
        while_cut = 0
        for number, (pixels, label) in enumerate(loader):
            if number == CUT_AT:
                network.cut(how)
                timer = threading.Timer(for_s, mend)
                timer.start()
            while_cut += number > CUT_AT and not mended.is_set()
            delivered += collect([(pixels, label)])
        timer.join()
        sampler.set_epoch(0)
        undisturbed = collect(loader)
    assert while_cut < 150 - CUT_AT - 1, "or this test shows nothing: the epoch ended before the cut did"
    assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    assert delivered == undisturbed
