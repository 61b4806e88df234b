"""Epochs of a subset, weighted, or with repeats: across ranks, resuming and loaders."""

import math
import shutil
from collections import Counter
from contextlib import ExitStack
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, SubsetRandomSampler, WeightedRandomSampler, random_split

from superdl import PerSample, SuperDataset, SuperLoader, SuperSampler
from superdl.super_wire.errors import ConfigError, PlanError
from superdl.super_wire.ids import ID_BYTES
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.integration.delivery import RECIPE, collect
from tests.integration.resuming import run_of

SIZE = 150
LEGS = (2, 3, 1)  # ranks of consecutive runs, each resuming the one before
DRAWS = [
    pytest.param({}, id="each once"),
    pytest.param({"indices": range(40, 120, 3)}, id="some"),
    pytest.param({"indices": [7, 149, 7, 3] * 9, "shuffle": False}, id="some, in their order, repeatedly"),
    pytest.param({"weights": 1.0 + np.arange(SIZE), "draws": 101}, id="by weights"),
    pytest.param({"indices": range(0, SIZE, 5), "repeats": 3}, id="each three times"),
    pytest.param({"weights": torch.arange(SIZE), "repeats": 2, "drop_last": True}, id="all of it"),
    pytest.param({"mix": "first_exhausted"}, id="a mix"),
    pytest.param({"mix": "all_exhausted"}, id="a mix that repeats"),
]


def parts_of(ref):
    """The parts of a mixed batch, by dataset."""
    return [part for _, part in getattr(ref, "parts", ((0, ref),))]


def drawn_together(ranks):
    """The draws of all ranks at each position, without padding: how often each (sample, number) occurs."""
    drawn = []
    for together in zip(*ranks, strict=True):
        counts = Counter()
        for ref in chain.from_iterable(map(parts_of, together)):
            ids = [ref.sample_ids[at : at + ID_BYTES] for at in range(0, len(ref.sample_ids), ID_BYTES)]
            numbers = np.frombuffer(ref.repetitions or bytes(4 * len(ids)), dtype="<u4").tolist()
            counts.update(
                pair
                for pair, pads in zip(zip(ids, numbers, strict=True), ref.padding_mask(), strict=True)
                if not pads
            )
        drawn.append(counts)
    return drawn


@pytest.mark.parametrize("draws", DRAWS)
def test_ranks_of_any_number_go_on_in_the_draws_of_an_epoch(shared_stack, images, draws):
    batch = math.lcm(*LEGS)
    with run_of(shared_stack, images, batch_size=batch, **draws) as one:
        whole, again = (drawn_together([one.sampler]) for _ in range(2))
        assert len(whole) == len(one.sampler) == -(-one.sampler.total_size // batch)
        assert draws.get("shuffle", True) is (whole != again)
    state, at, read = None, 0, []
    for leg, ranks in enumerate(LEGS, 1):
        stop = len(whole) * leg // len(LEGS)
        with ExitStack() as stack:
            plan = {"batch_size": batch // ranks, "num_replicas": ranks, **draws}
            runs = [
                stack.enter_context(run_of(shared_stack, images, state, rank=rank, **plan))
                for rank in range(ranks)
            ]
            read += drawn_together([list(islice(run.sampler, stop - at)) for run in runs])
            state = runs[-1].state_dict(stop - at)
        at = stop
    assert read == whole
    changed = {"repeats": 2} if not draws else {}
    with run_of(shared_stack, images, batch_size=batch, **changed) as other, pytest.raises(ConfigError):
        other.sampler.load_state_dict(state)


def test_torchs_own_objects_say_what_is_drawn(shared_stack, images):
    expected = list(expected_pixels(images, resize=SIDE, crop=SIDE).items())
    dataset = SuperDataset(images.as_uri(), RECIPE, coordinator=shared_stack.address)

    def delivered(given, **how):
        with SuperLoader(given, batch_size=16, **how) as loader:
            return collect(loader)

    parts = random_split(dataset, [0.8, 0.2], torch.Generator().manual_seed(3))
    for part in parts:
        assert delivered(part) == [expected[place] for place in part.indices]
    assert Counter(delivered(parts[0], shuffle=True)) == Counter(delivered(parts[0]))
    nested = Subset(parts[1], [5, 1, 5])
    assert delivered(nested) == [expected[parts[1].indices[place]] for place in (5, 1, 5)]
    assert delivered(parts[1], indices=[2, 0]) == [expected[parts[1].indices[place]] for place in (2, 0)]
    some = SubsetRandomSampler([3, 5, 8])
    assert Counter(delivered(dataset, indices=some, shuffle=True)) == Counter(
        expected[at] for at in (3, 5, 8)
    )
    weights = [float(place < 10) for place in range(SIZE)]
    by_weight = WeightedRandomSampler(weights, num_samples=40)
    assert Counter(delivered(dataset, weights=by_weight, shuffle=True)) == Counter(expected[:10] * 4)
    with pytest.raises(ConfigError, match="the Subset, which has 30 samples"):
        SuperSampler(parts[1], batch_size=4, shuffle=True, indices=[30])
    with pytest.raises(ConfigError, match="counted from 0, not -1"):
        SuperSampler(parts[1], batch_size=4, shuffle=True, indices=[3, -1])
    with pytest.raises(PlanError, match=r"indices must be in range\(150\)"):
        SuperSampler(dataset, batch_size=4, shuffle=True, indices=[150])
    both = ConcatDataset([dataset, dataset])
    with pytest.raises(ConfigError, match="Split each dataset"):
        SuperSampler(Subset(both, [3]), batch_size=4, shuffle=True)
    with pytest.raises(ConfigError, match="indices are empty"):
        SuperSampler(Subset(dataset, []), batch_size=4, shuffle=True)
    with SuperSampler(parts[0], batch_size=16, shuffle=True) as sampler:
        with pytest.raises(ConfigError, match="created for another dataset"):
            SuperLoader(parts[1], sampler)
        with SuperLoader(parts[0], sampler) as loader:
            assert sum(len(labels) for _, labels in loader) == len(parts[0])
    with pytest.raises(ConfigError, match="without replacement"):
        SuperSampler(
            dataset, batch_size=4, shuffle=True, weights=WeightedRandomSampler(weights, 5, replacement=False)
        )
    with pytest.raises(ConfigError, match="Omit draws"):
        SuperSampler(dataset, batch_size=4, shuffle=True, weights=by_weight, draws=7)


def test_places_of_a_source_that_has_changed_since_are_refused(shared_stack, tmp_path):
    source = write_images(tmp_path / "own", 20)

    def new():
        return SuperDataset(source.as_uri(), RECIPE, coordinator=shared_stack.address)

    dataset = new()
    some, others = random_split(dataset, [15, 5], torch.Generator().manual_seed(0))
    SuperSampler(some, batch_size=5, shuffle=True).close()
    (first,) = islice(source.rglob("*.jpg"), 1)
    shutil.copy(first, first.with_name("0.jpg"))
    listed_again = dataset
    while len(listed_again) < 21:  # a recent listing is reused
        listed_again = new()
        SuperSampler(listed_again, batch_size=5, shuffle=True).close()
    for given in ({"dataset": others}, {"dataset": dataset, "indices": [0]}):
        with pytest.raises(ConfigError, match="Create a new SuperDataset"):
            SuperSampler(**given, batch_size=5, shuffle=True)
    some, others = random_split(listed_again, [15, 6])
    for part in (some, others):
        SuperSampler(part, batch_size=3, shuffle=True).close()
    SuperSampler(dataset, batch_size=5, shuffle=True).close()  # the whole dataset


def test_each_repetition_is_augmented_in_its_own_way(shared_stack, images):
    def noisy(image, rng):
        return image[:1, :1].astype(np.int64) * 0 + rng.integers(2**40)

    transform = PerSample(noisy, seed=1, takes="numpy")
    dataset = SuperDataset(images.as_uri(), RECIPE, transform=transform, coordinator=shared_stack.address)

    def drawn(*, job, **how):
        with SuperSampler(dataset, batch_size=8, job=job, **how) as sampler:
            return [int(one) for noise, _ in SuperLoader(dataset, sampler) for one in noise[:, 0, 0, 0]]

    alone = drawn(job="once", shuffle=False)
    thrice = drawn(job="thrice", shuffle=False, repeats=3)
    assert thrice[::3] == alone
    assert len(set(thrice)) == 3 * SIZE
    ranks = [drawn(job="ranks", shuffle=False, repeats=3, rank=rank, num_replicas=2) for rank in range(2)]
    assert Counter(ranks[0] + ranks[1]) == Counter(thrice)
