"""Ranks started by torchrun partition every epoch, and a different number of ranks can resume it midway."""

import functools
import json
from itertools import islice

import pytest

from superdl import SuperDataset, SuperLoader
from superdl.coordinator.core import Plan
from tests.integration.delivery import RECIPE, assert_exactly_once, collect
from tests.integration.resuming import run_of
from tests.integration.torchrun import assert_none_is_left, in_order, launch, planned, written

GLOBAL_BATCH = 16
PASSES = [{}, {"drop_last": True}, {"stop": 4, "epochs": 2}]
RANKS = [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]


def plan(ranks):
    return Plan(size=150, batch_size=GLOBAL_BATCH // ranks, replicas=ranks, seed=1, shuffle=True)


@pytest.fixture(scope="module")
def run_with(temporary, images):
    """The records of a run with this many ranks. Each number is launched once."""

    @functools.cache
    def run(ranks):
        out, how = temporary / f"{ranks}", {"batch_size": GLOBAL_BATCH // ranks, "passes": PASSES}
        assert launch(ranks, temporary, images, out, **how) == ""
        assert_none_is_left(temporary)
        return written(out, ranks)

    return run


def of_pass(found, number):
    return [rank["passes"][number] for rank in found]


@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_share_an_epoch_in_the_same_order_whatever_their_number(run_with, images, ranks):
    found = run_with(ranks)
    whole, without_tail = of_pass(found, 0), of_pass(found, 1)
    assert in_order(whole) == planned(images, plan(1), 0), "the order depends on more than the global batch"
    assert sum(sum(batch["padding"]) for batches in whole for batch in batches) == -150 % ranks
    assert not any(any(batch["padding"]) for batches in whole for batch in batches[:-1]), "early padding"
    assert in_order(without_tail) == planned(images, plan(1), 0, 0, 9)
    assert {len(batch["keys"]) for batches in without_tail for batch in batches} == {GLOBAL_BATCH // ranks}
    assert not any(any(batch["padding"]) for batches in without_tail for batch in batches)
    agreed = [rank["agreed"] for rank in found]
    assert all(one == agreed[0] for one in agreed), "ranks disagree; their gradients are compared too"
    jobs, *facts = zip(*(facts[:3] for facts in agreed[0][: len(PASSES)]), strict=True)
    assert len(set(jobs)) == len(jobs), "two samplers share a job"
    assert facts == [(10, 9, 10), (150,) * 3]


def test_one_process_goes_on_where_two_ranks_stopped(run_with, temporary, images, shared_stack):
    before = in_order(of_pass(run_with(2), 2))
    assert before == planned(images, plan(2), 0) + planned(images, plan(2), 1, 0, 4)
    state = json.loads((temporary / "2" / "state.json").read_text())
    with run_of(shared_stack, images, state, batch_size=GLOBAL_BATCH) as run:
        refs = list(run.sampler)
        after = [(ref.epoch, ref.position, key) for ref in refs for key in ref.keys]
    assert after == planned(images, plan(1), 1, 4)
    with run_of(shared_stack, images, state, batch_size=GLOBAL_BATCH) as run:
        assert len(collect(run.loader)) == 150 - 4 * GLOBAL_BATCH


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_and_leaves_nothing(temporary, images):
    how = {"batch_size": 8, "passes": [{}], "failing": 1}
    assert "as scripted" in launch(2, temporary, images, temporary / "failing", **how)
    assert_none_is_left(temporary)


def test_validation_counts_each_sample_once_on_any_number_of_ranks(shared_stack, images):
    figures = {}
    for ranks in (1, 2, 4):
        dataset = SuperDataset(images.as_uri(), RECIPE, coordinator=shared_stack.address, padding="skip")
        labels, sums, lengths = [], [], set()
        for rank in range(ranks):
            with SuperLoader(dataset, batch_size=28 // ranks, rank=rank, num_replicas=ranks) as loader:
                batches = list(loader)
            lengths.add(len(batches))
            labels += [label for _, batch in batches for label in batch.tolist()]
            sums += [int(image.sum()) for batch, _ in batches for image in batch]
        assert len(lengths) == 1, "ranks took different numbers of steps"
        figures[ranks] = sorted(zip(labels, sums, strict=True))
    assert len(figures[1]) == 150
    assert figures[1] == figures[2] == figures[4]


def test_a_rank_that_comes_in_mid_epoch_gets_all_of_its_part(shared_stack, images, expected):
    with run_of(shared_stack, images, batch_size=8, num_replicas=2, rank=0, job="ranks") as early:
        iterator = iter(early.loader)
        delivered = collect(islice(iterator, 6))
        with run_of(shared_stack, images, batch_size=8, num_replicas=2, rank=1, job="ranks") as late:
            delivered += collect(late.loader)
            assert early.sampler.job == late.sampler.job
        delivered += collect(iterator)
    assert_exactly_once(delivered, expected)
