"""Pages of plans and catalogs: their batches match the plan, and their size is limited."""

import numpy as np
import pytest

from superdl.coordinator.catalog import Catalog, PackedStrings
from superdl.coordinator.catalog.dataset import Dataset, Listing
from superdl.coordinator.core import BatchPlace, Core, CoreSettings, DatasetFacts, JobOpened, Plan
from superdl.coordinator.server.paging import PlannedBatches, locations_fit, page_of, samples_from
from superdl.coordinator.store.locations import Joined, Places
from superdl.super_wire.errors import PlanError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.labels import RaggedLabels, unpack_labels
from superdl.super_wire.protocol import MAX_REPLY_BYTES
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.store.pack import new_pack_name
from tests.fixtures.ids import batch_id

RECIPE = Recipe.image(resize=8, crop=8)


class Planned:
    """A job on a catalog in memory. ``page()`` returns what NextBatches would answer."""

    def __init__(
        self, size=10, batch_size=4, *, key_bytes=12, recipe=RECIPE, float_labels=False, counts=None, **plan
    ):
        keys = [f"class/{number:0{key_bytes - 6}d}".encode() for number in range(size)]
        labels = np.arange(size) * 0.5 if float_labels else np.arange(size)
        if counts is not None:
            labels = RaggedLabels(np.array(counts, dtype=np.uint32), {"": np.arange(sum(counts))})
        catalog = Catalog.build(
            "s3://bucket", PackedStrings.pack(keys), PackedStrings.pack([b"v"] * size), labels
        )
        listing = Listing("s3://bucket/class", "", catalog=catalog)
        self.dataset = Dataset(b"d" * 16, recipe, listing)
        if not recipe.random:
            ids = catalog.sample_ids(recipe.digest)
            self.dataset.all_ids = np.frombuffer(ids, dtype=np.uint8).reshape(-1, ID_BYTES)
        self.plan = Plan(size, batch_size, **{"shuffle": False, **plan})
        self.core = Core(CoreSettings(budget_bytes=2**30))
        facts = DatasetFacts(self.dataset.content, size, recipe.random, 300, known_absent=True)
        for rank in range(self.plan.replicas):
            self.core.handle(JobOpened("job", facts, self.plan, rank), 0.0)

    def page(self, **options):
        options = {"rank": 0, "epoch": 0, "start": 0, "count": 1000, "with_keys": False} | options
        return page_of(self.core, self.core.job("job"), self.dataset, **options)


@pytest.mark.parametrize(
    ("size", "plan"), [(100, {"shuffle": True, "seed": 5, "epoch": 3}), (10, {}), (9, {}), (11, {})]
)
def test_batches_match_the_plan(size, plan):
    epoch = plan.pop("epoch", 0)
    planned = Planned(size, 4, replicas=2, **plan)
    for rank in range(2):
        page = planned.page(rank=rank, epoch=epoch, start=1, count=3, with_keys=True)
        assert [batch.position for batch in page.batches] == [1, 2, 3][: planned.plan.batches_per_epoch - 1]
        for batch in page.batches:
            expected = planned.plan.batch(epoch, batch.position, rank)
            indices, padding = expected.indices, expected.padding
            assert batch.sample_ids == planned.dataset.ids(indices, epoch)
            assert np.frombuffer(batch.labels, dtype=np.int64).tolist() == indices.tolist()
            assert list(batch.keys) == [key.decode() for key in planned.dataset.catalog.keys.take(indices)]
            assert batch.batch_id == batch_id(batch.sample_ids)
            assert batch.padding == (bytes(padding.tolist()) if padding.any() else b"")


@pytest.mark.parametrize("with_keys", [False, True])
@pytest.mark.parametrize(
    ("batch_size", "key_bytes"), [(1, 60), (64, 60), (1000, 200), (4096, 60), (5000, 12)]
)
def test_a_page_stays_below_a_mebibyte(batch_size, key_bytes, with_keys):
    planned = Planned(60_000, batch_size, key_bytes=key_bytes)
    page = planned.page(count=100_000, with_keys=with_keys)
    assert page.ByteSize() < MAX_REPLY_BYTES
    one_bytes = page.batches[0].ByteSize()
    assert page.ByteSize() + 2 * one_bytes > 0.4 * MAX_REPLY_BYTES  # and not needlessly small


def stored(planned, packs, *, share, seed):
    """Return locations for a share of the samples, spread over this many packs."""
    rng, places = np.random.default_rng(seed), Places()
    names = [new_pack_name("0123456789abcdef") for _ in range(packs)]
    size, content = len(planned.dataset.catalog), planned.dataset.content
    places.open(content, size)
    indices = np.flatnonzero(rng.random(size) < share)
    numbers = np.array([places.number(name) for name in names], dtype=np.uint32)
    numbers = numbers[rng.integers(0, packs, indices.size)]
    offsets, lengths = rng.integers(0, 2**63, indices.size, np.uint64), rng.integers(0, 2**32, indices.size)
    places.put(content, Joined(indices, numbers, offsets, lengths.astype(np.uint32)))
    places.mark_lost(names[:1])
    where = {
        index: (names[number - 1], begin, length)
        for index, number, begin, length in zip(
            *map(np.ndarray.tolist, (indices, numbers, offsets, lengths)), strict=True
        )
        if number > 1
    }
    return places, where


@pytest.mark.parametrize(
    ("batch_size", "packs", "share"), [(1, 9, 0.5), (64, 60_000, 1.0), (1000, 300, 0.9), (9000, 60_000, 1.0)]
)
def test_a_page_with_locations_has_those_of_the_samples_and_stays_below_a_mebibyte(batch_size, packs, share):
    planned = Planned(60_000, batch_size, shuffle=True)
    places, where = stored(planned, packs, share=share, seed=batch_size)
    assert locations_fit(planned.plan, planned.dataset)
    page = planned.page(count=100_000, places=places)
    assert page.ByteSize() < MAX_REPLY_BYTES
    assert len(set(page.packs)) == len(page.packs)
    for batch in page.batches:
        indices = planned.plan.batch(0, batch.position, 0).indices.tolist()
        pack_of = np.frombuffer(batch.pack_of, "<u4").tolist()
        begins, lengths = np.frombuffer(batch.offsets, "<u8"), np.frombuffer(batch.lengths, "<u4")
        located = {
            index: (page.packs[number - 1], begin, length)
            for index, number, begin, length in zip(indices, pack_of, begins, lengths, strict=bool(pack_of))
            if number
        }
        assert located == {index: where[index] for index in indices if index in where}
        assert (batch.resident, batch.failed) == (len(located), 0)


def place(epoch, job="job"):
    return BatchPlace(job, rank=0, epoch=epoch, position=1)


def test_the_latest_batches_are_found_with_their_latest_occurrences():
    planned = PlannedBatches(capacity=3)
    for epoch in (0, 1, 0):
        planned.add(b"a", place(epoch))
    assert planned.find(b"a") == [place(1), place(0)]
    for epoch in range(1000):
        planned.add(b"a", place(epoch))
    assert len(planned.find(b"a")) <= 16
    assert planned.find(b"a")[-1] == place(999)
    for name in (b"b", b"c", b"a", b"d"):
        planned.add(name, place(0))
    assert [bool(planned.find(name)) for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]


@pytest.mark.parametrize(
    ("size", "key_bytes"), [(10, 12), (3000, 12), (3000, 600), (600, 4096), (200_000, 12)]
)
@pytest.mark.parametrize("with_keys", [False, True])
def test_pages_of_a_catalog_have_all_samples_and_a_limited_size(size, key_bytes, with_keys):
    catalog = Planned(size, key_bytes=key_bytes).dataset.catalog
    labels, keys, start = [], b"", 0
    while start < size:
        page = samples_from(catalog, start, with_keys=with_keys)
        assert page.ByteSize() < MAX_REPLY_BYTES
        assert (page.bucket, page.fingerprint) == ("s3://bucket", catalog.fingerprint)
        assert len(page.labels) > 0
        labels += np.frombuffer(page.labels, dtype="<i8").tolist()
        keys += page.keys
        lengths = np.frombuffer(page.key_lengths, dtype="<u4").tolist()
        assert lengths == ([key_bytes] * (len(page.labels) // 8) if with_keys else [])
        start = len(labels)
    assert labels == list(range(size))
    assert keys == (b"".join(catalog.keys) if with_keys else b"")
    assert not samples_from(catalog, size, with_keys=with_keys).labels
    with pytest.raises(PlanError, match=f"index {size + 1} does not exist"):
        samples_from(catalog, size + 1, with_keys=with_keys)


@pytest.mark.parametrize(
    "most", [3, 2000, pytest.param(8000, marks=pytest.mark.slow)]
)  # lengths of a label: from 0 to 64,000 bytes
def test_labels_of_any_length_fit_into_pages_of_limited_size(most):
    size, batch_size = 3000, 16
    counts = np.random.default_rng(most).integers(0, most, size)
    begins = np.cumsum(counts) - counts
    planned = Planned(size, batch_size, counts=counts.tolist(), shuffle=True, seed=2)
    catalog = planned.dataset.catalog

    def expected(place):
        return list(range(begins[place], begins[place] + counts[place]))

    start, pages = 0, 0
    while start < planned.plan.batches_per_epoch:
        page = planned.page(start=start, with_keys=True)
        assert page.ByteSize() < MAX_REPLY_BYTES
        for batch in page.batches:
            labels = unpack_labels(batch.labels, catalog.label_dtype, len(batch.sample_ids) // ID_BYTES)
            indices = planned.plan.batch(0, batch.position, 0).indices
            assert [label.tolist() for label in labels] == [expected(place) for place in indices]
        start, pages = start + len(page.batches), pages + 1
    # The number of batches per page follows the mean label size, not the largest.
    assert pages <= 2 + 1.5 * size * (ID_BYTES + catalog.label_bytes + 20) / MAX_REPLY_BYTES
    for with_keys in (True, False):
        received = []
        while len(received) < size:
            samples = samples_from(catalog, len(received), with_keys=with_keys)
            assert samples.ByteSize() < MAX_REPLY_BYTES
            received += unpack_labels(samples.labels, catalog.label_dtype)
        assert [label.tolist() for label in received] == [expected(place) for place in range(size)]
