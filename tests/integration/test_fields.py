"""Images and their masks, in one object each: a custom step cuts them apart, and every path gives dicts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from superdl import Recipe, SuperDataset, SuperLoader, SuperSampler

ROOT = Path(__file__).parents[2]
STEPS = '''
import numpy as np
from superdl.lambda_prefetch import custom_step

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
SIDE, COUNT = 24, 22
RECIPE = Recipe([{"op": "custom", "name": "pairs_of_tests:pair@1", "params": {"width": SIDE}}])
COLUMNS = {"pixel_values": "image", "labels": "mask", "boxes": "boxes", "class": "labels"}


def write_pairs(directory):
    """Images beside their masks in PNGs, as sets of pairs come; what they hold, in the order of keys."""
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
    """One epoch, in the order of keys; how many samples were read out of packs."""
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


def main(directory):
    """A script of a user's, on the embedded default with a store."""
    pairs = write_pairs(directory / "pairs")
    dataset = SuperDataset(directory / "pairs", RECIPE, columns=COLUMNS, return_info=True)
    with SuperSampler(dataset, batch_size=5, shuffle=False) as sampler:
        assert_epoch(SuperLoader(dataset, sampler), pairs)
        workers = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
        # When the places in packs are known is the coordinator's affair; an epoch takes a moment.
        assert any(assert_epoch(workers, pairs) for _ in range(50)), "nothing was read out of packs"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_images_with_masks_and_boxes(temporary):
    (temporary / "pairs_of_tests.py").write_text(STEPS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(temporary), str(ROOT)]),
        "SUPER_STEP_MODULES": "pairs_of_tests",
        "SUPER_STORE": str(temporary / "store"),
        "TMPDIR": str(temporary),
    }
    script = [sys.executable, "-m", "tests.integration.test_fields", str(temporary)]
    done = subprocess.run(  # our own script
        script, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    main(Path(sys.argv[1]))
