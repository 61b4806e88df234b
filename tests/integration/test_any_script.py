"""Transforms, ``collate_fn`` and single samples as scripts use them with a DataLoader, run with SUPER."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

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
from tests.fixtures.torchvision import torchvision_transforms
from tests.integration.delivery import RECIPE, reading

v1 = torchvision_transforms()
if v1 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from torchvision.transforms import v2  # noqa: E402  # after its operators

BATCH = 16


def noisy(image):
    """Draw from all three global generators."""
    draws = random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002
    return torch.cat([torch.from_numpy(np.array(image)).flatten().double(), torch.tensor(draws)])


def noisy_by_its_own(image, rng):
    """Draw from a given generator, so that threads may call it."""
    return np.asarray(image) + rng.normal(size=np.asarray(image).shape)


def training():
    """The most common training pipeline."""
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
    """Two epochs as batches, in order."""
    return [(images.clone(), labels.clone()) for _ in range(2) for images, labels in loader]


def assert_equal(made, expected):
    assert len(made) == len(expected) == 2 * -(-150 // BATCH)
    for (images, labels), (others, other_labels) in zip(made, expected, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)
    for half in (made[: len(made) // 2], made[len(made) // 2 :]):
        assert sum(len(labels) for _, labels in half) == 150
    assert not torch.equal(made[0][0], made[len(made) // 2][0]), "two epochs drew the same"


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
            assert "may use random number" in repr(loader)
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
        assert "reads with threads: 1, since nothing uses" in caplog.text
        expected = epochs(loader)
    with SuperLoader(dataset, threads=0, num_workers=2, **how) as loader:
        assert "reads with worker processes: 2, since threads=0 was passed" in caplog.text
        assert_equal(epochs(loader), expected)


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


def test_processes_leave_out_what_is_bad_as_threads_do(here, tmp_path, images):
    for name, count in (("ant", 3), ("bee", 2)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number}.jpg").write_bytes(b"this is no image")
    good = next(images.glob("cat/*.jpg"))
    (tmp_path / "bee" / "9.jpg").write_bytes(good.read_bytes())
    dataset = SuperDataset(tmp_path, RECIPE, on_bad_sample="skip")
    with SuperLoader(dataset, batch_size=3, threads=0, num_workers=2) as loader:
        assert [labels.tolist() for _, labels in loader] == [[1]], "a batch of bad samples was not dropped"
        assert len(loader.bad_samples) == 5


# ----------------------------------------------------------------- collation as by default_collate


class ManyCrops:
    """Two global and four local crops, as in DINO."""

    def __init__(self):
        self.large, self.small = v2.RandomResizedCrop(24), v2.RandomResizedCrop(8)
        self.end = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __call__(self, image):
        return [self.end(crop(image)) for crop in (*[self.large] * 2, *[self.small] * 4)]


def detection(samples):
    """Collate as torchvision's reference scripts for detection do."""
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
    assert whole["labels"].tolist() == list(expected[1]), "collate_fn beside a sampler did not get the item"
    with SuperLoader(plain, batch_size=3, collate_fn=detection) as loader:
        by_loader = next(iter(loader))
    for pixels, labels in (by_loader, *(item for item, _ in by_dataset)):
        assert labels == expected[1]
        assert all(torch.equal(*pair) for pair in zip(pixels, expected[0], strict=True))
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


# -------------------------------------------------------------------------------- Augment

AUGMENT = Augment(32, brightness=0.4, hue=0.1, mean=(0.5,) * 3, std=(0.25,) * 3, seed=5)


def with_ids(images, labels, info):
    """Augment in the reader, and return the sample ids too."""
    return *AUGMENT(images, labels, info), info.sample_ids


def pictures(loader):
    """Pixels by sample id over one epoch. Asserts that padding equals the samples it repeats."""
    seen = {}
    for images, _, ids in loader:
        assert images.shape == (len(ids) // 16, 3, 32, 32)
        assert images.is_contiguous(memory_format=torch.channels_last)
        for at, image in enumerate(images):
            pixels = np.ascontiguousarray(image).tobytes()
            assert seen.setdefault(ids[16 * at : 16 * at + 16], pixels) == pixels
    return seen


def test_the_same_by_every_loader_in_any_batch_and_fresh_by_epoch(shared_stack, images):
    recipe = Recipe.image(resize=41, crop=40)  # not yet cached

    def job(**how):
        return reading(images, shared_stack.address, recipe, transform=with_ids, **how)

    with job(batch_size=16) as (sampler, loader):
        first, second = pictures(loader), pictures(loader)
        assert sampler.job_stats().samples_produced == 150
    assert len(first) == 150
    assert first.keys() == second.keys()
    assert not set(first.values()) & set(second.values())
    # Batch size, order, workers, threads and ranks do not change a sample's augmentation.
    with job(batch_size=7, seed=9, workers=2) as (sampler, loader):
        assert pictures(loader) == first
        assert pictures(SuperLoader(loader.dataset, sampler)) == second
    ranks = {}
    for rank in range(2):
        how = {"rank": rank, "num_replicas": 2, "job": "ranks", "coordinator": shared_stack.address}
        with SuperSampler(loader.dataset, batch_size=8, shuffle=True, **how) as sampler:
            ranks |= pictures(map(loader.dataset.__getitem__, sampler))
    assert ranks == first


def test_in_the_training_loop_it_is_what_it_is_in_the_worker(shared_stack, images):
    how = {"batch_size": 16, "workers": 2}
    with reading(images, shared_stack.address, return_info=True, **how) as (_, loader):
        in_loop = [AUGMENT.images(pixels, info) for pixels, _, info in loader]
    with reading(images, shared_stack.address, transform=AUGMENT, **how) as (_, loader):
        in_worker = [pixels for pixels, _ in loader]
    assert all(torch.equal(*pair) for pair in zip(in_loop, in_worker, strict=True))
