"""The public API as a typed program uses it: mypy checks this file, nobody runs it.

``assert_type`` says what a checker must find. A line that ignores an error is a wrong use: if that error
is gone, mypy, strict, tells that too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import torch
from torch.utils.data import DataLoader

from superdl import (
    Augment,
    BatchInfo,
    PerSample,
    Recipe,
    SuperDataset,
    SuperLoader,
    SuperSampler,
    SuperTrainerMixin,
    split_transform,
)
from superdl.sampler import PlanIterator, SamplerStats
from superdl.super_dataset import SplitTransform
from superdl.super_wire import BatchRef


def half(images: torch.Tensor, labels: torch.Tensor, info: BatchInfo) -> tuple[torch.Tensor, torch.Tensor]:
    """A transform for whole batches."""
    assert_type(info.sample_ids, bytes)
    assert_type(info.keys, tuple[str, ...])
    assert_type(info.bad, tuple[tuple[str, str], ...])
    assert_type(info.wait_s, float)
    assert_type(info.to("cuda"), BatchInfo)
    return images.half(), labels


def trains() -> None:
    """The way of README."""
    recipe = assert_type(Recipe.image(resize=256, crop=224), Recipe)
    assert_type(recipe.output_shape, tuple[int, int, int] | None)
    dataset = SuperDataset("s3://bucket/train", recipe, transform=half, on_bad_sample="skip")
    sampler = SuperSampler(dataset, batch_size=256, shuffle=True, seed=0)
    assert_type(dataset.classes, tuple[str, ...])
    assert_type(len(sampler) + len(dataset) + sampler.epoch, int)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for images, _labels in DataLoader(dataset, sampler=sampler, batch_size=None):
            assert_type(images, Any)
    assert_type(iter(sampler), PlanIterator)
    assert_type(next(iter(sampler)), BatchRef)
    assert_type(sampler.job_stats(), SamplerStats)
    assert_type(sampler.state_dict(batches_consumed=3), dict[str, Any])
    sampler.load_state_dict(sampler.state_dict())


def trains_by_its_own_pipeline(pipeline: Callable[[Any], torch.Tensor]) -> None:
    """A pipeline for one image, cut in two."""
    parts = assert_type(split_transform(pipeline), SplitTransform)
    assert_type(parts.recipe, Recipe)
    assert_type(parts.rest, Callable[[Any], Any] | None)
    split_transform([pipeline])  # type: ignore[arg-type]


def trains_by_threads() -> None:
    """The same without worker processes, and augmentation on the device."""
    dataset = SuperDataset("images", recipe=Recipe([{"op": "resize", "size": 256}]), return_info=True)
    SuperDataset("images", Recipe([]), transform=torch.nn.Identity())  # on every sample
    SuperDataset("images", Recipe([]), transform=PerSample(lambda image: image, seed=1, takes="tensor"))
    with SuperSampler(dataset, batch_size=8, shuffle=True, coordinator="host:50051") as sampler:
        assert_type(sampler, SuperSampler)
        loader = SuperLoader(dataset, sampler, device="cuda", prefetch=4, threads=2)
        augment = Augment((224, 224), hue=(0.0, 0.1), mean=[0.5] * 3, std=[0.5] * 3, dtype=torch.bfloat16)
        for images, labels, info in loader:
            assert_type(augment.images(images, info), torch.Tensor)
            assert_type(augment(images, labels, info), tuple[torch.Tensor, Any])
        assert_type(loader.state_dict(), dict[str, Any])
        evaluating = SuperTrainerMixin().get_eval_dataloader(loader)
        assert_type(evaluating, SuperLoader | DataLoader[Any])
        loader.close()


def trains_as_a_script_does() -> None:
    """Two objects, and what scripts ask of them."""
    dataset = SuperDataset("images", Recipe.image(resize=256, crop=224), coordinator="host:50051")
    assert_type(dataset.class_to_idx, dict[str, int])
    assert_type(dataset.samples[0], tuple[str, Any])
    assert_type([label for _path, label in dataset.samples[:3]], list[Any])
    weights = torch.bincount(torch.tensor(dataset.targets))
    assert_type(weights, torch.Tensor)
    with SuperLoader(dataset, batch_size=256, shuffle=True, num_workers=4, pin_memory=True, seed=1) as loader:
        loader.set_epoch(1)
        assert_type(loader.batch_size, int | None)
        assert_type(len(loader) + loader.num_workers + loader.drop_last, int)
        for images, _labels in loader:
            assert_type(images, Any)
    sampler = SuperSampler(dataset, batch_size=8, shuffle=True)
    assert_type(sampler.num_samples + sampler.total_size + sampler.batch_size, int)


def wrong(dataset: SuperDataset, sampler: SuperSampler) -> None:
    """What a checker tells before a run does."""
    SuperDataset("images", "resize")  # type: ignore[arg-type]
    SuperDataset("images", Recipe([]), on_bad_sample="ignore")  # type: ignore[arg-type]
    SuperDataset("images", Recipe([]), transform=lambda images, labels: images)  # type: ignore[arg-type]
    PerSample(str, takes="jpeg")  # type: ignore[arg-type]
    SuperSampler(dataset, sampler=7, batch_size=4)  # type: ignore[arg-type]
    SuperSampler(dataset, batch_size="8", shuffle=True)  # type: ignore[arg-type]
    SuperSampler("images", batch_size=8, shuffle=True)  # type: ignore[arg-type]
    SuperLoader(dataset, batch_size="8")  # type: ignore[arg-type]
    SuperLoader(dataset, sampler, 0, 2, 1)  # type: ignore[call-arg]  # threads come by name
    Recipe.image(256, 224)  # type: ignore[call-arg]  # sizes come by name
    Augment(224, flip="often")  # type: ignore[arg-type]
