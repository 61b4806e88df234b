"""``SampleList`` is the sequence that ``ImageFolder.samples`` is, without an object for each."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

from superdl.super_wire.labels import SampleList, joined

KEYS = [b"cat/a.jpg", b"dog/\xff.jpg", "dog/größe.jpg".encode()]


def listed(bucket: str = "file:///images", labels: object = (0, 1, 1)) -> SampleList:
    lengths = np.array([len(key) for key in KEYS], dtype="<u4").tobytes()
    return SampleList(bucket, b"".join(KEYS), lengths, joined([np.array(labels)]))


def test_it_is_a_sequence_of_paths_and_labels():
    samples = listed()
    assert len(samples) == 3
    assert samples[0] == samples[-3] == samples[np.int64(0)] == ("/images/cat/a.jpg", 0)
    assert type(samples[0][1]) is int
    assert samples[-1] == ("/images/dog/größe.jpg", 1)
    assert samples[1:] == list(samples)[1:] == [samples[1], samples[2]]
    assert [label for _, label in samples] == [0, 1, 1]
    assert samples[0] in samples
    assert random.Random(0).sample(samples, 3)
    assert list(pickle.loads(pickle.dumps(samples))) == list(samples)
    assert repr(samples).startswith("<SampleList of 3: ('/images/cat/a.jpg', 0), ")
    for index in (3, -4):
        with pytest.raises(IndexError, match="3 samples has no place"):
            samples[index]
    with pytest.raises(TypeError):
        samples["cat"]


def test_paths_are_what_opens_them():
    assert listed("s3://bucket")[0][0] == "s3://bucket/cat/a.jpg"
    assert listed("file:///")[0][0] == "/cat/a.jpg"
    assert listed()[1][0].encode(errors="surrogateescape") == b"/images/dog/\xff.jpg"


def test_labels_stay_arrays_where_they_are_and_cannot_be_changed():
    samples = listed(labels=[[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]])
    assert samples[2][1].tolist() == [2.5, 3.0]
    with pytest.raises(ValueError, match="read-only"):
        samples.labels[0] = 1
