"""Training scripts written for ImageFolder and DataLoader, using a SUPER dataset and loader instead.

Their lines on datasets and loaders are kept; each comment names their place in the original.
"""

import os
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from superdl import Augment, SuperDataset, SuperLoader, SuperSampler
from superdl.super_wire.errors import SourceNotFoundError, UsageError
from tests.fixtures.images import CLASSES, SIDE, independent_decode
from tests.fixtures.stack import Stack
from tests.integration.delivery import RECIPE, assert_exactly_once, collect, reading, settled_stats

BATCH = 16


def as_image_folder(dataset, images, below):
    """Check all that scripts read of a torchvision ImageFolder, for ``images`` stored at ``below``."""
    files = sorted(images.glob("*/*.jpg"), key=lambda path: str(path.relative_to(images)).encode())
    assert len(dataset) == len(files) == 150
    assert list(dataset.classes) == list(CLASSES)
    assert dataset.class_to_idx == {name: place for place, name in enumerate(CLASSES)}
    expected = [(f"{below}/{path.relative_to(images)}", CLASSES.index(path.parent.name)) for path in files]
    assert list(dataset.samples) == expected
    paths, labels = zip(*dataset.samples, strict=True)
    assert paths[0] == expected[0][0]
    # Class weights and stratified splits:
    assert list(dataset.targets) == list(labels)
    counts = Counter(labels)
    assert np.bincount(dataset.targets).tolist() == [counts[label] for label in range(4)]
    assert torch.tensor(dataset.targets).dtype == torch.int64


def test_a_directory_is_known_before_there_is_a_sampler(here, images):
    as_image_folder(SuperDataset(images, RECIPE), images, str(images))


def test_a_bucket_is_known_before_there_is_a_sampler_and_read_once(photos, images, expected):
    with Stack(arguments=("--slots", "2")) as stack:
        as_image_folder(SuperDataset(photos, RECIPE, coordinator=stack.address), images, photos)
        with reading(photos, stack.address, batch_size=BATCH, workers=2) as (sampler, loader):
            for _ in range(2):
                assert_exactly_once(collect(loader), expected)
            stats = settled_stats(sampler)
        assert stats.samples_produced == 150
        assert stats.source_bytes == sum(path.stat().st_size for path in images.glob("*/*.jpg"))
        missing = SuperDataset("s3://no-such-bucket/train", RECIPE, coordinator=stack.address)
        with pytest.raises(SourceNotFoundError, match="no-such-bucket"):
            len(missing)


def test_labels_of_a_key_list_are_targets(here, images, tmp_path):
    chosen = sorted(images.glob("bee/*.jpg"))[:5]
    rows = [f"{path.relative_to(images)},{number / 2}" for number, path in enumerate(chosen)]
    key_list = tmp_path / "chosen.csv"
    key_list.write_text("\n".join(["key,label", *rows]))
    dataset = SuperDataset(images, RECIPE, key_list=key_list)
    assert dataset.targets.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert dataset.samples[3] == (str(chosen[3]), 1.5)
    assert dataset.classes == ()
    assert dataset.class_to_idx == {}


def test_what_is_known_goes_into_workers(here, images):
    """Transforms in workers may look up classes and samples, without asking a coordinator."""
    dataset = SuperDataset(images, RECIPE, return_info=True)
    first = dataset.samples[0]
    sampler = SuperSampler(dataset, batch_size=BATCH, shuffle=False)
    looking = Looking(dataset)
    for context in ("fork", "spawn"):
        loader = DataLoader(
            looking, sampler=sampler, batch_size=None, num_workers=1, multiprocessing_context=context
        )
        assert next(iter(loader)) == [[*first], 150]  # the DataLoader turns tuples into lists
    sampler.close()


class Looking:
    """A user's dataset that wraps ours."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitem__(self, ref):
        assert len(self.dataset[ref][1]) > 0
        return self.dataset.samples[0], len(self.dataset.targets)


def test_the_loop_of_pytorch_examples_imagenet(here, images):
    train_dataset, val_dataset = SuperDataset(images, RECIPE), SuperDataset(images, RECIPE)
    train_sampler = val_sampler = None  # main_worker() when not distributed
    train_loader = SuperLoader(
        train_dataset,
        batch_size=BATCH,
        shuffle=(train_sampler is None),
        num_workers=4,
        pin_memory=True,
        sampler=train_sampler,
    )
    val_loader = SuperLoader(
        val_dataset, batch_size=BATCH, shuffle=False, num_workers=4, pin_memory=True, sampler=val_sampler
    )
    orders = []
    for _epoch in range(2):  # train()
        seen = []
        for i, (batch, target) in enumerate(train_loader):
            assert (batch.size(0), target.size(0)) == (6 if i == 9 else BATCH,) * 2
            seen += target.tolist()
        assert i + 1 == len(train_loader)  # ProgressMeter(len(train_loader), ...)
        orders.append(seen)
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == val_dataset.targets.tolist()
    # validate() checks for samples that no rank got: len(val_loader.sampler) * args.world_size.
    assert len(val_loader) == 10
    assert val_loader.sampler.total_size == len(val_loader.dataset) == 150
    assert torch.cat([target for _, target in val_loader]).tolist() == val_dataset.targets.tolist()
    for loader in (train_loader, val_loader):
        loader.close()


# ---------------------------------------- dataset[i]: a single sample after the transform, as in a batch


def noisy(image):
    """Draw from global generators."""
    return torch.from_numpy(np.array(image)) * random.random() + torch.rand(())


def test_an_integer_gives_the_sample_of_a_batch(here, images):
    files = sorted(images.glob("*/*.jpg"), key=lambda path: str(path.relative_to(images)).encode())
    dataset = SuperDataset(images, RECIPE)
    image, _ = dataset[3]  # before anything else is known
    assert image.dtype == torch.uint8
    for place in (3, np.int64(3), torch.tensor(3), 3 - 150):
        again, again_label = dataset[place]
        assert torch.equal(again, image)
        assert (again_label, type(again_label)) == (CLASSES.index(files[3].parent.name), int)
    assert np.array_equal(image.permute(1, 2, 0), independent_decode(files[3], resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=BATCH, shuffle=False) as sampler:
        batches = list(SuperLoader(dataset, sampler))
        assert torch.equal(batches[0][0][3], image)
        assert torch.equal(dataset[-1][0], batches[-1][0][-1]), "differs while a sampler is open"
    part = Subset(dataset, [7, 3])
    assert torch.equal(part[1][0], image)
    for outside in (150, -151):
        with pytest.raises(IndexError, match="the dataset has 150"):
            dataset[outside]


@pytest.mark.parametrize(
    "how",
    [
        {"transform": noisy},
        {"transform": Augment(24)},
        {"return_info": True},
        {"transform": noisy, "columns": {"pixel_values": "images", "labels": "labels"}},
    ],
    ids=["own", "Augment", "info", "columns"],
)
def test_a_sample_is_transformed_as_in_the_first_epoch(here, images, how):
    dataset = SuperDataset(images, RECIPE, **how)
    with SuperSampler(dataset, batch_size=BATCH, shuffle=False) as sampler:
        batch = next(iter(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=1)))
    sample = dataset[5]
    if isinstance(batch, dict):
        assert torch.equal(sample["pixel_values"], batch["pixel_values"][5])
        assert sample["labels"] == batch["labels"][5]
        return
    assert torch.equal(sample[0], batch[0][5])
    assert sample[1] == batch[1][5]
    assert [info.keys for info in sample[2:]] == [(info.keys[5],) for info in batch[2:]]


def test_other_indices_are_refused_with_words(here, images):
    dataset = SuperDataset(images, RECIPE)
    with pytest.raises(UsageError, match=r"Subset\(dataset, range\(2, 5\)\)"):
        dataset[2:5]
    for loader in (
        DataLoader(dataset, batch_size=None),
        DataLoader(Subset(dataset, [1, 2]), batch_size=None, num_workers=1),
        DataLoader(dataset, batch_size=4),
    ):
        with pytest.raises(UsageError, match="sampler=sampler, batch_size=None"):
            next(iter(loader))


# ---------------------------------------------------------------------------------------- no setup

PROGRAM = """
import logging
import random
import sys
import time

import numpy as np
import torch

from superdl import Recipe, SuperDataset, SuperLoader


def train_transform(image):
    pixels = torch.from_numpy(np.array(image))
    return [pixels.flip(0) if random.random() < 0.5 else pixels, pixels * np.random.rand()]


if __name__ == "__main__":
    logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
    logging.getLogger("superdl.sampler").setLevel("WARNING")
    dataset = SuperDataset(sys.argv[1], Recipe.image(resize=32, crop=32), transform=train_transform)
    print(len(dataset), dataset.classes, dataset.samples[0][1], len(dataset.targets))
    views, label = dataset[3]
    print([view.shape for view in views], label)
    loader = SuperLoader(dataset, batch_size=16, num_workers=2, multiprocessing_context=sys.argv[2])
    for _ in range(2):
        batches = list(loader)
        print(len(batches), [len(view) for view in batches[0][0]], batches[0][1][3].item() == label)
    print(torch.equal(dataset[3][0][0], views[0]))
    while loader.sampler.job_stats().requests_in_flight:  # what was read may not have been answered for yet
        time.sleep(0.05)
    print(loader.sampler.job_stats().samples_produced)
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_script_that_names_no_coordinator_and_closes_nothing(images, temporary, context):
    """One embedded coordinator serves the dataset, its samples and its loader."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    environment |= {"TMPDIR": str(temporary), "SUPER_STORE": "none", "SUPER_STATE": "none"}
    program = temporary / f"script_{context}.py"
    program.write_text(PROGRAM)
    done = subprocess.run(  # our own script
        [sys.executable, str(program), str(images), context],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    known, shapes, which, *epochs_seen, again, produced = done.stdout.splitlines()
    assert known == "150 ('ant', 'bee', 'cat', 'dog') 0 150"
    assert shapes == "[torch.Size([32, 32, 3]), torch.Size([32, 32, 3])] 0"
    assert "reads with worker processes: 2, since train_transform may use" in which
    assert epochs_seen == ["10 [16, 16] True"] * 2
    assert again == "True"
    assert produced == "149", "the sample that was read alone was produced again"
    assert "Traceback" not in done.stderr
