"""A user's custom steps: texts become token ids; pairs become images with masks and boxes."""

import numpy as np
import pytest
import torch
from PIL import Image

from superdl import Recipe, SuperLoader
from tests.fixtures.stack import Stack
from tests.integration.delivery import reading

STEPS = '''
import numpy as np
from superdl.lambda_prefetch import custom_step

@custom_step("1")
def tokenize(array, *, vocabulary):
    """One number for each word: its length, modulo the vocabulary."""
    words = array.tobytes().decode().split()
    return np.array([len(word) % vocabulary for word in words], dtype=np.int32)

@custom_step("1")
def pair(array, *, width):
    """The image left of its mask; boxes around what the mask shows, as (left, top, right, bottom)."""
    mask = array[:, width:, 0]
    boxes = []
    for value in np.unique(mask[mask > 0]):
        rows, columns = np.nonzero(mask == value)
        boxes.append((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
    boxes = np.array(boxes, dtype=np.float32).reshape(-1, 4)
    return {"image": array[:, :width], "mask": mask, "boxes": boxes}
'''
TOKENS = {
    "op": "custom",
    "name": "steps_of_tests:tokenize@1",
    "params": {"vocabulary": 100},
    "input": "bytes",
}
TEXTS = {f"{number:02d}.txt": " ".join("x" * (1 + at) for at in range(number)) for number in range(20)}
SIDE, COUNT = 24, 22
PAIRS = {"op": "custom", "name": "steps_of_tests:pair@1", "params": {"width": SIDE}}
COLUMNS = {"pixel_values": "image", "labels": "mask", "boxes": "boxes", "class": "labels"}


@pytest.fixture(scope="module")
def step_stack(temporary):
    """A stack with a store, whose functions may import the steps."""
    (temporary / "steps_of_tests.py").write_text(STEPS)
    environment = {
        "PYTHONPATH": str(temporary),
        "SUPER_STEP_MODULES": "steps_of_tests",
        "SUPER_STORE": str(temporary / "store"),
    }
    with Stack(arguments=("--slots", "2"), environment=environment) as running:
        yield running


def padded(tokens, labels, info):
    """A user's transform."""
    return torch.nn.utils.rnn.pad_sequence(list(tokens), batch_first=True, padding_value=-1), labels


@pytest.mark.parametrize("transform", [None, padded])
def test_texts_come_as_lists_or_padded(step_stack, tmp_path, transform):
    """One text is empty. Labels are word counts."""
    directory, key_list = tmp_path / "texts", tmp_path / "texts.csv"
    directory.mkdir()
    for name, text in TEXTS.items():
        (directory / name).write_text(text)
    key_list.write_text("key,label\n" + "".join(f"{name},{len(TEXTS[name].split())}\n" for name in TEXTS))
    how = {"batch_size": 6, "workers": 2, "key_list": key_list, "transform": transform}
    seen = []
    with reading(directory, step_stack.address, Recipe([TOKENS]), **how) as (_, loader):
        for tokens, lengths in loader:
            seen += lengths.tolist()
            assert isinstance(tokens, list) == (transform is None)
            for row, length in zip(tokens, lengths.tolist(), strict=True):
                assert (row[length:] == -1).all()
                assert row.dtype == torch.int32
                assert row[:length].tolist() == list(range(1, length + 1))
    assert sorted(seen) == list(range(20))


def write_pairs(directory):
    """Write images with masks beside them in PNGs, as paired datasets have. Return them in key order."""
    rng = np.random.default_rng(3)
    pairs = []
    (directory / "all").mkdir(parents=True)
    for number in range(COUNT):
        coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        image = np.array(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
        mask = np.zeros((SIDE, SIDE), dtype=np.uint8)
        for value in range(1, 1 + number % 4):
            top, left = rng.integers(0, SIDE // 2, 2)
            mask[top : top + 5 * value, left : left + 4] = value
        both = np.concatenate([image, np.repeat(mask[..., None], 3, axis=2)], axis=1)
        Image.fromarray(both).save(directory / "all" / f"{number:03d}.png")
        pairs.append((image, mask))
    return pairs


def assert_epoch(loader, pairs):
    """Read one epoch in key order. Return how many samples were read from packs."""
    at = straight = 0
    for batch, info in loader:
        straight += info.straight
        assert list(batch) == list(COLUMNS)
        for row, pixels in enumerate(batch["pixel_values"]):
            image, mask = pairs[at]
            assert np.array_equal(pixels.movedim(0, -1).numpy(), image)
            assert np.array_equal(batch["labels"][row].numpy(), mask)
            boxes = batch["boxes"][row]
            assert len(boxes) == len(np.unique(mask[mask > 0]))
            assert all(mask[int(top), int(left) : int(right)].any() for left, top, right, _ in boxes)
            at += 1
    assert at == COUNT
    return straight


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_images_with_masks_and_boxes(step_stack, tmp_path):
    pairs = write_pairs(tmp_path)
    how = {"batch_size": 5, "shuffle": False, "workers": 2, "columns": COLUMNS, "return_info": True}
    with reading(tmp_path, step_stack.address, Recipe([PAIRS]), **how) as (sampler, workers):
        assert_epoch(SuperLoader(workers.dataset, sampler), pairs)
        # The coordinator decides when pack locations become known, so repeat short epochs.
        assert any(assert_epoch(workers, pairs) for _ in range(50)), "no sample was read from a pack"
