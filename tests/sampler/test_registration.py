"""Queries about a dataset without a job."""

import numpy as np
import pytest

from superdl.sampler import describe, list_labels, list_samples
from superdl.super_wire.errors import ConfigError, SourceError, UnknownJobError
from tests.sampler.stand_ins import BoundDataset

FINGERPRINT = b"f" * 16


@pytest.fixture
def dataset(coordinator):
    return BoundDataset(coordinator=coordinator.address)


def test_describing_a_dataset_opens_no_job(coordinator, dataset, monkeypatch):
    for named in (dataset.coordinator, None):
        dataset.coordinator = named
        known = describe(dataset)
        assert (known.size, known.classes, known.fingerprint) == (1000, ("cat", "dog"), FINGERPRINT)
        assert (known.cache, known.store) == ("", "")
        monkeypatch.setenv("SUPER_COORDINATOR", coordinator.address)
    assert {name for name, _ in coordinator.calls} == {"RegisterDataset"}
    assert len({request.run_id for request in coordinator.requests("RegisterDataset")}) == 1, "one listing"
    dataset.coordinator = "nowhere"
    with pytest.raises(ConfigError, match="coordinator="):
        describe(dataset)


def test_samples_are_fetched_in_pages(coordinator, dataset):
    coordinator.script.size = 1000
    samples = list_samples(dataset, FINGERPRINT)
    assert list(samples) == [(f"/images/{at}.jpg", at % 2) for at in range(1000)]
    asked = coordinator.requests("GetSamples")
    assert [request.start for request in asked] == list(range(0, 1000, 300))
    assert all(request.with_keys for request in asked)


def test_labels_are_fetched_without_keys(coordinator, dataset):
    labels = list_labels(dataset, FINGERPRINT)
    assert np.array_equal(labels, np.arange(1000) % 2)
    assert not labels.flags.writeable
    assert not any(request.with_keys for request in coordinator.requests("GetSamples"))


def test_a_lost_dataset_is_registered_again_a_few_times(coordinator, dataset):
    coordinator.script.failures["GetSamples"] = [UnknownJobError("no dataset")] * 2
    assert len(list_samples(dataset, FINGERPRINT)) == 1000
    coordinator.script.failures["GetSamples"] = [UnknownJobError("no dataset")] * 99
    with pytest.raises(UnknownJobError, match="5 times in a row"):
        list_samples(dataset, FINGERPRINT)


@pytest.mark.parametrize("page", range(4))
def test_pages_of_two_listings_are_not_mixed(coordinator, dataset, page):
    right, other = [FINGERPRINT] * page, b"g" * 16
    coordinator.script.page_fingerprints = [*right, other]
    assert len(list_samples(dataset, FINGERPRINT)) == 1000
    assert [request.start for request in coordinator.requests("GetSamples")][page + 1 :] == [0, 300, 600, 900]
    coordinator.script.page_fingerprints = [*right, other] * 99
    with pytest.raises(UnknownJobError, match="5 times in a row"):
        list_labels(dataset, FINGERPRINT)


def test_a_changed_source_is_an_error(dataset):
    with pytest.raises(SourceError, match="has changed since"):
        list_labels(dataset, b"g" * 16)
