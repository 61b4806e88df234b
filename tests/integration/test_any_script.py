"""What scripts over a DataLoader do with transforms, ``collate_fn`` and single samples, done with SUPER."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from superdl import (
    Augment,
    PerSample,
    Recipe,
    SuperDataset,
    SuperLoader,
    SuperMix,
    SuperSampler,
    split_transform,
)
from tests.fixtures.images import SIDE
from tests.fixtures.torchvision import torchvision_transforms

v1 = torchvision_transforms()
if v1 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from torchvision.transforms import v2  # noqa: E402  # after its operators

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
BATCH = 16


def noisy(image):
    """Draws from all three global generators."""
    draws = random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002
    return torch.cat([torch.from_numpy(np.array(image)).flatten().double(), torch.tensor(draws)])


def noisy_by_its_own(image, rng):
    """Draws from a generator that it is given, so that threads may call it."""
    return np.asarray(image) + rng.normal(size=np.asarray(image).shape)


def training():
    """The commonest pipeline of all."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(24),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.5,) * 3, (0.5,) * 3),
        ]
    )


def epochs(loader):
    """Two epochs, batch by batch, in order."""
    return [(images.clone(), labels.clone()) for _ in range(2) for images, labels in loader]


def assert_equal(made, expected):
    assert len(made) == len(expected) == 2 * -(-150 // BATCH)
    for (images, labels), (others, other_labels) in zip(made, expected, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)
    for half in (made[: len(made) // 2], made[len(made) // 2 :]):
        assert sum(len(labels) for _, labels in half) == 150
    assert not torch.equal(made[0][0], made[len(made) // 2][0]), "each epoch draws anew"


# ----------------------------------------------------------------------------- every transform


@pytest.mark.parametrize("make", [training, lambda: noisy], ids=["torchvision v2", "own"])
def test_a_transform_that_draws_is_read_by_processes_as_a_dataloader_reads_it(here, images, make):
    dataset = SuperDataset(images, RECIPE, transform=make())
    with SuperSampler(dataset, batch_size=BATCH, shuffle=True, seed=3) as sampler:
        expected = epochs(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2))
    for workers in (None, 1, 0):
        loader = SuperLoader(dataset, batch_size=BATCH, shuffle=True, seed=3, num_workers=workers)
        with loader:
            assert "worker processes" in repr(loader)
            assert "may draw from random generators" in repr(loader)
            assert loader.num_workers == workers if workers is not None else loader.num_workers >= 1
            assert_equal(epochs(loader), expected)


@pytest.mark.parametrize(
    "transform",
    [
        noisy_by_its_own,
        PerSample(noisy_by_its_own, takes="numpy", seed=5),
        Augment(24, seed=2, brightness=0.4),
        v1.Compose([v1.CenterCrop(24), v1.ToTensor()]),
        None,
    ],
    ids=["generator", "seeded", "Augment", "validation", "none"],
)
def test_threads_and_processes_give_the_same(here, images, transform, caplog):
    caplog.set_level("INFO", "superdl.super_dataset")
    dataset = SuperDataset(images, RECIPE, transform=transform)
    how = {"batch_size": BATCH, "shuffle": True, "seed": 7}
    with SuperLoader(dataset, **how) as loader:
        assert "reads by threads: 1, since nothing draws" in caplog.text
        expected = epochs(loader)
    with SuperLoader(dataset, threads=0, num_workers=2, **how) as loader:
        assert "reads by worker processes: 2, since threads=0 says so" in caplog.text
        assert_equal(epochs(loader), expected) if transform else assert_same_order(epochs(loader), expected)


def assert_same_order(made, expected):
    for (images, labels), (others, other_labels) in zip(made, expected, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


def test_what_a_split_leaves_goes_on_in_processes(here, images):
    parts = split_transform(v2.Compose([v2.Resize(28), *training().transforms]))
    dataset = SuperDataset(images, parts.recipe, transform=parts.rest)
    whole = SuperDataset(images, Recipe([{"op": "resize", "size": 28}]), transform=training())
    with (
        SuperLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=2) as loader,
        SuperSampler(whole, batch_size=BATCH, shuffle=True) as sampler,
    ):
        assert "RandomResizedCrop" in repr(loader)
        assert_equal(epochs(loader), epochs(DataLoader(whole, sampler=sampler, batch_size=None)))


def test_processes_resume_in_mid_epoch(here, images):
    dataset = SuperDataset(images, RECIPE, transform=training())

    def loader_of():
        return SuperLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=2, job="resumes")

    with loader_of() as loader:
        expected = [images.clone() for images, _ in loader]
    with loader_of() as loader:
        batches = iter(loader)
        begun = [next(batches)[0].clone() for _ in range(3)]
        state = loader.state_dict()
        del batches
    with loader_of() as loader:
        loader.load_state_dict(state)
        resumed = [images.clone() for images, _ in loader]
    assert all(map(torch.equal, [*begun, *resumed], expected))
    assert len(begun + resumed) == len(expected) == 10


def test_processes_leave_out_what_is_bad_as_threads_do(here, tmp_path, images):
    for name, count in (("ant", 3), ("bee", 2)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number}.jpg").write_bytes(b"this is no image")
    good = next(images.glob("cat/*.jpg"))
    (tmp_path / "bee" / "9.jpg").write_bytes(good.read_bytes())
    dataset = SuperDataset(tmp_path, RECIPE, on_bad_sample="skip")
    with SuperLoader(dataset, batch_size=3, threads=0, num_workers=2) as loader:
        assert [labels.tolist() for _, labels in loader] == [[1]], "a batch of bad samples alone is left out"
        assert len(loader.bad_samples) == 5


# --------------------------------------------------------------------- as default_collate makes it


class ManyCrops:
    """As DINO's: two global crops and four local ones."""

    def __init__(self):
        self.large, self.small = v2.RandomResizedCrop(24), v2.RandomResizedCrop(8)
        self.end = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __call__(self, image):
        return [self.end(crop(image)) for crop in (*[self.large] * 2, *[self.small] * 4)]


class TwoViews:
    """As SimCLR's and MoCo's; with something of each kind beside them."""

    def __call__(self, image):
        array = np.array(image)
        return noisy(image), {"array": array[:2], "mean": float(array.mean()), "size": image.size}, "a name"


@pytest.mark.parametrize("transform", [ManyCrops(), TwoViews()], ids=["DINO", "SimCLR"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_has_the_structure_that_a_dataloader_gives(here, images, transform, workers):
    dataset = SuperDataset(images, RECIPE, transform=transform)
    with SuperLoader(dataset, batch_size=4, num_workers=workers) as loader:
        views, labels = next(iter(loader))
    expected, expected_labels = default_collate([dataset[place] for place in range(4)])
    assert torch.equal(labels, expected_labels)
    assert isinstance(views, list)
    assert_alike(views, expected)
    if isinstance(transform, ManyCrops):
        assert [view.shape for view in views] == [(4, 3, 24, 24)] * 2 + [(4, 3, 8, 8)] * 4


def assert_alike(made, expected):
    if isinstance(expected, torch.Tensor):
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
        assert torch.equal(made, expected)
    elif isinstance(expected, dict):
        assert list(made) == list(expected)
        for name, part in expected.items():
            assert_alike(made[name], part)
    elif expected and isinstance(expected[0], str):
        assert list(made) == list(expected)
    else:
        assert isinstance(made, list)
        assert len(made) == len(expected)
        for pair in zip(made, expected, strict=True):
            assert_alike(*pair)


def detection(samples):
    """As torchvision's reference scripts have it."""
    return tuple(zip(*samples, strict=True))


def test_collate_fn_gets_samples_as_a_dataloaders_does(here, images):
    plain = SuperDataset(images, RECIPE, transform=training())
    expected = detection([plain[place] for place in range(3)])
    collating = SuperDataset(images, RECIPE, transform=training(), collate_fn=detection, return_info=True)
    by_dataset = []
    with SuperSampler(collating, batch_size=3, shuffle=False) as sampler:
        for loader in (
            SuperLoader(collating, sampler, num_workers=2),
            DataLoader(collating, sampler=sampler, batch_size=None, collate_fn=lambda item: item),
        ):
            sampler.set_epoch(0)
            by_dataset.append(next(iter(loader)))
        whole = next(iter(SuperLoader(plain, sampler, collate_fn=lambda item: {"labels": item[1]})))
    assert whole["labels"].tolist() == list(expected[1]), "beside a sampler it gets the item"
    with SuperLoader(plain, batch_size=3, collate_fn=detection) as loader:
        by_loader = next(iter(loader))
    for pixels, labels in (by_loader, *(item for item, _ in by_dataset)):
        assert labels == expected[1]
        assert all(map(torch.equal, pixels, expected[0]))
    assert [info.keys for _, info in by_dataset] == [plain_keys(images, 3)] * 2


def plain_keys(images, count):
    return tuple(str(path.relative_to(images)) for path in sorted(images.glob("*/*.jpg"))[:count])


def test_a_mix_joins_crops_with_crops(here, images):
    parts = [SuperDataset(images, RECIPE, transform=ManyCrops()) for _ in range(2)]
    mix = SuperMix(dict.fromkeys(parts, 0.5))
    with SuperLoader(mix, batch_size=6, num_workers=2) as loader:
        views, labels = next(iter(loader))
        assert [len(view) for view in views] == [len(labels)] * 6 == [6] * 6
    with SuperLoader(mix, batch_size=6, num_workers=2, collate_fn=detection) as loader:
        assert [len(part) for part in next(iter(loader))] == [6, 6]
    assert torch.equal(mix[150][0][0], parts[1][0][0][0])


# -------------------------------------------------------------------------- nothing set up


PROGRAM = """
import logging
import random
import sys

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
    views, label = dataset[3]
    print([view.shape for view in views], label)
    loader = SuperLoader(
        dataset, batch_size=16, num_workers=2, multiprocessing_context=sys.argv[2], drop_last=True
    )
    for _ in range(2):
        batches = list(loader)
        print(len(batches), [len(view) for view in batches[0][0]], batches[0][1][3].item() == label)
    print(torch.equal(dataset[3][0][0], views[0]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_script_that_names_no_coordinator(images, temporary, context):
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
    shapes, which, *epochs_seen, again = done.stdout.splitlines()
    assert shapes == "[torch.Size([32, 32, 3]), torch.Size([32, 32, 3])] 0"
    assert "reads by worker processes: 2, since train_transform may draw" in which
    assert epochs_seen == ["9 [16, 16] True"] * 2
    assert again == "True"
    assert "Traceback" not in done.stderr
