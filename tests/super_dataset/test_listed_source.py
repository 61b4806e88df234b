"""What a dataset knows about its source before and after a sampler exists, and in copies."""

import pickle

import numpy as np
import pytest

from superdl import sampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.batch_ref import DatasetBinding
from superdl.super_wire.errors import UsageError
from superdl.super_wire.labels import SampleList

RECIPE = Recipe.image(resize=8, crop=8)
BINDING = DatasetBinding(b"i" * 16, b"f", 3, ("cat", "dog"), "int64", cache="")
LABELS = np.array([0, 1, 1])
ASK = (len, lambda d: d.classes, lambda d: d.class_to_idx, lambda d: d.samples, lambda d: d.targets)


class Asked:
    """Answer in place of a coordinator, and record the calls."""

    def __init__(self):
        self.calls = []
        self.binding = BINDING

    def describe(self, dataset):
        self.calls.append(("describe", dataset.source))
        return self.binding

    def list_samples(self, dataset, fingerprint):
        self.calls.append(("list_samples", fingerprint))
        return SampleList("s3://b", b"cat/0dog/1dog/2", b"\x05\0\0\0" * 3, LABELS.copy())

    def list_labels(self, dataset, fingerprint):
        self.calls.append(("list_labels", fingerprint))
        return LABELS.copy()


@pytest.fixture
def asked(monkeypatch):
    answers = Asked()
    for name in ("describe", "list_samples", "list_labels"):
        monkeypatch.setattr(sampler, name, getattr(answers, name))
    return answers


def test_properties_are_queried_once_and_only_when_needed(asked):
    dataset = SuperDataset("s3://b", RECIPE)
    assert "not listed yet" in repr(dataset)
    assert dataset
    assert asked.calls == []
    for _ in range(2):
        assert len(dataset) == 3
        assert (dataset.classes, dataset.class_to_idx) == (("cat", "dog"), {"cat": 0, "dog": 1})
    assert asked.calls == [("describe", "s3://b")]
    assert dataset.targets.tolist() == dataset.targets.tolist() == [0, 1, 1]
    assert list(dataset.samples) == [("s3://b/cat/0", 0), ("s3://b/dog/1", 1), ("s3://b/dog/2", 1)]
    assert dataset.samples is dataset.samples
    assert dataset.targets is dataset.samples.labels
    assert asked.calls[1:] == [("list_labels", b"f"), ("list_samples", b"f")]
    assert "s3://b: 3 samples of 2 classes, Recipe([" in repr(dataset)


def test_a_sampler_s_newer_listing_replaces_earlier_queries(asked):
    dataset = SuperDataset("s3://b", RECIPE)
    samples = dataset.samples
    dataset.bind(BINDING)
    assert dataset.samples is samples
    dataset.bind(DatasetBinding(b"i" * 16, b"g", 4, (), "int64", "redis://x"))
    assert len(dataset) == 4
    assert dataset.samples is not samples
    assert asked.calls[-1] == ("list_samples", b"g")


def in_another_process(dataset, monkeypatch):
    """A copy of the dataset as in a worker process."""
    text = pickle.dumps(dataset)
    monkeypatch.setattr("superdl.super_dataset.listed_source.os.getpid", lambda: 1)
    return pickle.loads(text)


@pytest.mark.parametrize("named", [None, "argument", "variable"])
def test_a_copy_only_queries_a_coordinator_with_a_known_address(asked, monkeypatch, named):
    dataset = SuperDataset("s3://b", RECIPE, coordinator="host:1" if named == "argument" else None)
    samples = list(dataset.samples)
    calls = list(asked.calls)
    copy = in_another_process(dataset, monkeypatch)
    assert (len(copy), copy.classes, asked.calls) == (3, ("cat", "dog"), calls)
    if named == "variable":
        monkeypatch.setenv("SUPER_COORDINATOR", "host:1")
    if named:
        assert (list(copy.samples), copy.targets.tolist()) == (samples, [0, 1, 1])
        assert asked.calls == [*calls, ("list_samples", b"f")]
        return
    for ask in (lambda: copy.samples, lambda: copy.targets):
        with pytest.raises(UsageError, match="Pass samples and targets separately"):
            ask()
    assert asked.calls == calls
