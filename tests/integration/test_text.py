"""Samples that are no images: texts of different lengths become token ids, named by a key list."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.stack import Stack

MODULE = '''
import numpy as np
from superdl.lambda_prefetch import custom_step

@custom_step("1")
def tokenize(array, *, vocabulary):
    """One number for each word: its length, modulo the vocabulary."""
    words = array.tobytes().decode().split()
    return np.array([len(word) % vocabulary for word in words], dtype=np.int32)
'''
RECIPE = Recipe(
    [
        {
            "op": "custom",
            "name": "tokens_of_text_test:tokenize@1",
            "params": {"vocabulary": 100},
            "input": "bytes",
        }
    ]
)
TEXTS = {f"{number:02d}.txt": " ".join("x" * (1 + at) for at in range(number)) for number in range(20)}


@pytest.fixture(scope="module")
def text_stack(temporary):
    """A stack whose functions may import the step."""
    (temporary / "tokens_of_text_test.py").write_text(MODULE)
    environment = {
        "PYTHONPATH": str(temporary),
        "SUPER_STEP_MODULES": "tokens_of_text_test",
    }
    with Stack(arguments=("--slots", "2"), environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The directory of the texts, one of them empty, and the key list; labels are the numbers of words."""
    directory = tmp_path_factory.mktemp("texts")
    for name, text in TEXTS.items():
        (directory / name).write_text(text)
    key_list = tmp_path_factory.mktemp("list") / "texts.csv"
    key_list.write_text("key,label\n" + "".join(f"{name},{len(TEXTS[name].split())}\n" for name in TEXTS))
    return directory, key_list


def padded(item):
    """A collate function of the user's."""
    return torch.nn.utils.rnn.pad_sequence(list(item[0]), batch_first=True, padding_value=-1), item[1]


def padded_in_the_worker(tokens, labels, info):
    """The same as a transform."""
    return padded((tokens, labels))


def check(tokens, length):
    assert tokens.dtype == torch.int32
    assert tokens.tolist() == list(range(1, length + 1))


def test_texts_come_as_lists_or_padded(text_stack, texts):
    directory, key_list = texts
    plain = SuperDataset(directory, RECIPE, key_list=key_list)
    transformed = SuperDataset(directory, RECIPE, key_list=key_list, transform=padded_in_the_worker)
    ways = (
        (plain, None),
        (plain, padded),
        (transformed, None),
    )
    for dataset, collate in ways:
        with SuperSampler(dataset, batch_size=6, shuffle=True, coordinator=text_stack.address) as sampler:
            loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2, collate_fn=collate)
            seen = []
            for tokens, lengths in loader:
                seen += lengths.tolist()
                assert isinstance(tokens, list) == (dataset is plain and collate is None)
                for row, length in zip(tokens, lengths.tolist(), strict=True):
                    assert (row[length:] == -1).all()
                    check(row[:length], length)
        assert sorted(seen) == list(range(20))
