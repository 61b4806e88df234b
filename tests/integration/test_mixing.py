"""Mixes of datasets with different recipes: batches, ranks, resuming, loaders, concatenation."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from superdl import Recipe, SuperDataset, SuperLoader, SuperMix, SuperSampler
from superdl.super_wire.errors import ConfigError, UsageError
from tests.fixtures.images import SIDE, expected_pixels
from tests.integration.delivery import collect, pixels_of

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # called by torchdata 0.11

SIZE = 150
LARGE = SIDE + 8


class Photos:
    """The images by two recipes whose pixels differ but not their shape, and the expected pixels of each."""

    def __init__(self, stack, images):
        self.a, self.b = (
            SuperDataset(images.as_uri(), Recipe.image(resize=side, crop=SIDE), coordinator=stack.address)
            for side in (SIDE, LARGE)
        )
        self.of_a, self.of_b = (
            list(expected_pixels(images, resize=side, crop=SIDE).items()) for side in (SIDE, LARGE)
        )
        assert not set(self.of_a) & set(self.of_b)

    def by_dataset(self, batch):
        """What a batch has of each dataset."""
        got = Counter(collect([batch]))
        found = [Counter({one: got[one] for one in known}) for known in (self.of_a, self.of_b)]
        assert found[0] + found[1] == got
        return [+counts for counts in found]


@pytest.fixture
def photos(shared_stack, images):
    return Photos(shared_stack, images)


def test_the_state_of_another_mix_is_refused_and_changes_nothing(photos):
    mix = SuperMix({photos.a: 0.75, photos.b: 0.25})
    with SuperSampler(mix, batch_size=12, shuffle=True) as sampler:
        assert sampler.counts == (150, 50)
        assert len(list(islice(sampler, 3))) == 3
        state, before = sampler.state_dict(3), sampler.state_dict()
        half = json.loads(json.dumps(state))
        half["mix"][1]["mix"][0] += 1
        with pytest.raises(ConfigError, match="datasets, sizes or proportions"):
            sampler.load_state_dict(half)
        half["mix"][1]["mix"][0] -= 1
        half["mix"][1]["position"] -= 1
        with pytest.raises(ConfigError, match="at different positions"):
            sampler.load_state_dict(half)
        assert sampler.state_dict() == before
    with (
        SuperSampler(mix, batch_size=10, shuffle=True) as other,
        pytest.raises(ConfigError, match="the global batch is"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize("kind", ["threads", "workers", "stateful"])
def test_every_loader_resumes_in_a_mix(photos, kind):
    def run(state=None):
        mix = SuperMix({photos.a: 2, photos.b: 1})
        sampler = stack.enter_context(SuperSampler(mix, batch_size=16, shuffle=True, seed=7))
        loader: Any
        if kind == "threads":
            loader = stack.enter_context(SuperLoader(mix, sampler))
        else:
            make = StatefulDataLoader if kind == "stateful" else DataLoader
            loader = make(mix, sampler=sampler, batch_size=None, num_workers=2)
        keeper = sampler if kind == "workers" else loader
        if state is not None:
            keeper.load_state_dict(json.loads(json.dumps(state)))
        for count, batch in enumerate(loader, 1):
            how = {"batches_consumed": count} if kind == "workers" else {}
            yield collect([batch]), keeper.state_dict(**how)

    with ExitStack() as stack:
        whole = list(run())
    assert len(whole) == -(-225 // 16)
    with ExitStack() as stack:
        rest = list(run(whole[4][1]))
    assert [batch for batch, _ in rest] == [batch for batch, _ in whole[5:]]


def test_a_mix_saved_at_the_end_of_an_epoch_goes_on_with_the_next(photos):
    mix, how = SuperMix({photos.a: 3, photos.b: 1}), {"batch_size": 16, "shuffle": True, "seed": 7}
    with SuperSampler(mix, **how) as sampler:
        loader = DataLoader(mix, sampler=sampler, batch_size=None)
        first = collect(loader)
        next_epoch, at_end = (json.dumps(sampler.state_dict(count)) for count in (None, len(sampler)))
        second = collect(loader)
    assert second != first
    with SuperSampler(mix, **how) as sampler:
        loader = DataLoader(mix, sampler=sampler, batch_size=None)
        sampler.load_state_dict(json.loads(next_epoch))
        assert collect(loader) == second
        sampler.load_state_dict(json.loads(at_end))
        assert collect(loader) == []
        assert collect(loader) == second


def test_a_concatenation_has_each_sample_once_shuffled_over_the_whole(photos):
    few = Subset(photos.b, [7, 90])
    both = ConcatDataset([photos.a, few])
    expected = Counter(photos.of_a) + Counter(photos.of_b[at] for at in (7, 90))
    with SuperLoader(both, batch_size=8, shuffle=True) as loader:
        first, second = (collect(loader) for _ in range(2))
    assert Counter(first) == Counter(second) == expected
    assert first != second
    with SuperSampler(both, batch_size=8, shuffle=False, drop_last=True) as sampler:
        loader = DataLoader(SuperMix(both), sampler=sampler, batch_size=None, num_workers=2)
        batches = [photos.by_dataset(batch) for batch in loader]
    assert [a.total() + b.total() for a, b in batches] == [8] * 19
    assert sum((b for _, b in batches), Counter()) == Counter(photos.of_b[at] for at in (7, 90))
    assert len(both) == len(SuperMix(both)) == SIZE + 2
    with (
        SuperSampler(both, batch_size=8, shuffle=True) as sampler,
        pytest.raises(UsageError, match="yields whole batches"),
    ):
        next(iter(DataLoader(sampler.dataset, sampler=sampler, batch_size=None)))


def test_parts_of_other_forms_are_listed(shared_stack, images):
    small, large = (
        SuperDataset(
            images.as_uri(),
            Recipe.image(resize=SIDE, crop=side),
            return_info=True,
            coordinator=shared_stack.address,
        )
        for side in (SIDE, SIDE - 4)
    )
    with SuperLoader(SuperMix([small, large]), batch_size=10, shuffle=False) as loader:
        shown, labels, infos = next(iter(loader))
    assert [image.shape[-1] for image in shown] == [SIDE] * 5 + [SIDE - 4] * 5
    assert labels.shape == (10,)
    assert [len(info.sample_ids) // 16 for info in infos] == [5, 5]
    assert len(pixels_of(torch.stack(shown[:5]))) == 5


def test_what_is_no_mix_is_refused(photos):
    for proportions in ({photos.a: 0}, {photos.a: -1}, {photos.a: float("nan")}, {photos.a: "much"}):
        with pytest.raises(ConfigError, match="a finite number above 0"):
            SuperMix(proportions)
    with pytest.raises(ConfigError, match="at least one dataset"):
        SuperMix({})
    with pytest.raises(ConfigError, match="'first_exhausted' or 'all_exhausted'"):
        SuperMix([photos.a], "never")
    with pytest.raises(ConfigError, match="would contain no sample"):
        SuperSampler(SuperMix({photos.a: 1, photos.b: 0.001}), batch_size=4, shuffle=True)
    mix = SuperMix([photos.a, photos.b])
    for how in ({"weights": [1]}, {"in_order": False}):
        with pytest.raises(ConfigError, match="a mix (does not accept|cannot use)"):
            SuperSampler(mix, batch_size=4, shuffle=True, **how)
    with pytest.raises(UsageError, match="not list"):
        SuperSampler(SuperMix([[1, 2]]), batch_size=4, shuffle=True)
    with SuperSampler(mix, batch_size=4, shuffle=True) as sampler:
        with pytest.raises(UsageError, match="for p in sampler.parts"):
            sampler.job_stats()
        with pytest.raises(ConfigError, match="state for a mix of 2"):
            sampler.load_state_dict({})
        with pytest.raises(UsageError, match="batch_size=None"):
            next(iter(DataLoader(mix, sampler=sampler)))
        with pytest.raises(UsageError, match="not by str"):
            mix["first"]
        with pytest.raises(UsageError, match="batch_size=None"):
            next(iter(DataLoader(mix, batch_size=None)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_of_one_dataset_each_in_an_epoch_of_any_size(photos, ranks):
    mix, how = SuperMix({photos.a: 3, photos.b: 1}), {"draws": 200, "batching": "per_dataset"}
    with ExitStack() as stack:
        samplers = [
            stack.enter_context(
                SuperSampler(mix, batch_size=12 // ranks, shuffle=True, rank=rank, num_replicas=ranks, **how)
            )
            for rank in range(ranks)
        ]
        loaders = [DataLoader(mix, sampler=sampler, batch_size=None) for sampler in samplers]
        counts = []
        for together in zip(*loaders, strict=True):
            by_rank = [[sum(of.values()) for of in photos.by_dataset(batch)] for batch in together]
            assert len({size.index(0) for size in by_rank}) == 1, "ranks read different datasets"
            counts.append([sum(sizes) for sizes in zip(*by_rank, strict=True)])
    assert [sum(of) for of in zip(*counts, strict=True)] == list(samplers[0].counts) == [12 * 12, 4 * 12]
    assert {sum(sizes) for sizes in counts} == {12}


def test_an_epoch_of_a_mix_has_as_many_draws_as_are_named(photos):
    with SuperSampler(SuperMix({photos.a: 3, photos.b: 1}), batch_size=7, shuffle=True, draws=50) as sampler:
        assert sampler.counts == (38, 12)
    for how, message in (
        ({"draws": 1}, "no samples of the mix.s dataset 1"),
        ({"batching": "none"}, "one of mixed, per_"),
    ):
        with pytest.raises(ConfigError, match=message):
            SuperSampler(SuperMix({photos.a: 3, photos.b: 1}), batch_size=7, shuffle=True, **how)
