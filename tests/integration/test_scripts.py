"""Training scripts that were written for ImageFolder and DataLoader, as theirs use a dataset and a loader.

What they say of datasets and loaders stands here as there; each comment names where.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from superdl import Recipe, SuperDataset, SuperLoader, SuperSampler, SuperTrainerMixin
from superdl.super_wire.errors import SourceNotFoundError
from tests.fixtures.images import CLASSES, SIDE
from tests.fixtures.stack import Stack

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
BATCH = 16


def as_image_folder(dataset, images, below):
    """All that scripts read of a torchvision ImageFolder, of ``images`` at the place ``below``."""
    files = sorted(images.glob("*/*.jpg"), key=lambda path: str(path.relative_to(images)).encode())
    assert len(dataset) == len(files) == 150
    assert list(dataset.classes) == list(CLASSES)
    assert dataset.class_to_idx == {name: place for place, name in enumerate(CLASSES)}
    expected = [(f"{below}/{path.relative_to(images)}", CLASSES.index(path.parent.name)) for path in files]
    assert list(dataset.samples) == expected
    paths, labels = zip(*dataset.samples, strict=True)
    assert paths[0] == expected[0][0]
    # Class weights, stratified splits:
    assert list(dataset.targets) == list(labels)
    counts = Counter(labels)
    assert np.bincount(dataset.targets).tolist() == [counts[label] for label in range(4)]
    assert torch.tensor(dataset.targets).dtype == torch.int64


def test_a_directory_is_known_before_there_is_a_sampler(here, images):
    as_image_folder(SuperDataset(images, RECIPE), images, str(images))


def test_a_bucket_is_known_before_there_is_a_sampler(photos, images):
    with Stack(arguments=("--slots", "1")) as stack:
        as_image_folder(SuperDataset(photos, RECIPE, coordinator=stack.address), images, photos)
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
    """A transform there may look up classes and samples; nobody asks a coordinator for them."""
    dataset = SuperDataset(images, RECIPE, return_info=True)
    first = dataset.samples[0]
    sampler = SuperSampler(dataset, batch_size=BATCH, shuffle=False)
    looking = Looking(dataset)
    for context in ("fork", "spawn"):
        loader = DataLoader(
            looking, sampler=sampler, batch_size=None, num_workers=1, multiprocessing_context=context
        )
        assert next(iter(loader)) == [[*first], 150]  # the DataLoader makes lists of tuples
    sampler.close()


class Looking:
    """A user's dataset around ours."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitem__(self, ref):
        assert len(self.dataset[ref][1]) > 0
        return self.dataset.samples[0], len(self.dataset.targets)


def test_the_loop_of_pytorch_examples_imagenet(here, images):
    train_dataset, val_dataset = SuperDataset(images, RECIPE), SuperDataset(images, RECIPE)
    train_sampler = val_sampler = None  # main_worker(), not distributed
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
    # validate(): are there samples that no rank got? It counts by len(val_loader.sampler) * args.world_size.
    assert len(val_loader) == 10
    assert val_loader.sampler.total_size == len(val_loader.dataset) == 150
    assert torch.cat([target for _, target in val_loader]).tolist() == val_dataset.targets.tolist()
    for loader in (train_loader, val_loader):
        loader.close()


def test_two_ranks_count_samples_as_a_distributed_sampler_does(here, images):
    dataset = SuperDataset(images, RECIPE)
    loaders = [
        SuperLoader(dataset, batch_size=BATCH // 2, rank=rank, num_replicas=2, job="count")
        for rank in range(2)
    ]
    theirs = [torch.utils.data.DistributedSampler(dataset, 2, rank) for rank in range(2)]
    for loader, their in zip(loaders, theirs, strict=True):
        assert loader.sampler.num_samples == their.num_samples == 75
        assert loader.sampler.total_size == their.total_size == 150
        assert len(loader.sampler) == len(loader) == 10
        assert sum(len(labels) for _, labels in loader) == 75
        loader.close()


def test_set_epoch_gives_an_epochs_order_again(here, images):
    with SuperLoader(SuperDataset(images, RECIPE), batch_size=BATCH, shuffle=True) as loader:
        orders = []
        for epoch in (0, 1, 0):
            loader.set_epoch(epoch)
            orders.append(torch.cat([labels for _, labels in loader]).tolist())
        assert orders[0] == orders[2] != orders[1]


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated")  # Lightning 2.6 asks it
def test_lightning_trains_on_two_objects(here, images, tmp_path, monkeypatch):
    from tests.integration.lightning_training import pl

    monkeypatch.chdir(tmp_path)
    dataset = SuperDataset(images, RECIPE)

    class Linear(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3 * SIDE * SIDE, len(dataset.classes))
            self.orders = [[], []]

        def training_step(self, batch, _number):
            images, labels = batch
            self.orders[self.current_epoch] += labels.tolist()
            return torch.nn.functional.cross_entropy(self.linear(images.flatten(1) / 255), labels)

        def train_dataloader(self):
            return SuperLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=4)

        def configure_optimizers(self):
            steps = self.trainer.max_epochs * len(dataset) // BATCH
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)]

    model = Linear()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(model)
    assert model.orders[0] != model.orders[1]
    assert [sorted(order) for order in model.orders] == [dataset.targets.tolist()] * 2


def test_transformers_trainer_trains_on_two_objects(here, images, tmp_path):
    from tests.integration.trainer_training import Model, arguments  # first: it readies torchvision

    class SuperTrainer(SuperTrainerMixin, importlib.import_module("transformers").Trainer):  # type: ignore[misc]
        pass

    def named(batch):
        return {"pixel_values": batch[0].float() / 255, "labels": batch[1]}

    dataset = SuperDataset(images, RECIPE)
    sampler = SuperSampler(dataset, batch_size=BATCH, shuffle=True)
    loader = SuperLoader(dataset, sampler, num_workers=2, collate_fn=named)
    trainer = SuperTrainer(Model(), arguments(tmp_path), train_dataset=loader, eval_dataset=loader)
    trainer.train()
    assert trainer.num_examples(trainer.get_train_dataloader()) == len(dataset) == 150
    assert trainer.state.global_step == 3 * len(loader)
    assert trainer.evaluate()["eval_loss"] > 0
    loader.close()


PROGRAM = """
import time

from superdl import Recipe, SuperDataset, SuperLoader

dataset = SuperDataset({source!r}, Recipe.image(resize=32, crop=32))
print(len(dataset), dataset.classes, dataset.samples[0][1], sum(dataset.targets))
loader = SuperLoader(dataset, batch_size=16, shuffle=True, num_workers=4)
print(sum(len(labels) for images, labels in loader))
while loader.sampler.job_stats().requests_in_flight:  # what was read may not have been answered for yet
    time.sleep(0.05)
print(loader.sampler.job_stats().samples_produced)
"""


@pytest.mark.slow
def test_the_embedded_default_serves_both_the_dataset_and_its_loader(images, temporary):
    """As a script of two objects that closes nothing, with one coordinator for all that it asks."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    environment |= {
        "TMPDIR": str(temporary),
        "SUPER_STORE": "none",
        "SUPER_STATE": "none",
        "SUPER_CACHE_BYTES": "64mb",
    }
    program = temporary / "two_objects.py"
    program.write_text(PROGRAM.format(source=str(images)))
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *counts = done.stdout.splitlines()
    assert first.startswith("150 ('ant', 'bee', 'cat', 'dog') 0 ")
    assert counts == ["150", "150"]
    assert "Traceback" not in done.stderr
