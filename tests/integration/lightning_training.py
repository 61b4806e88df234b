"""A LightningModule for tests, and a program that runs it as one rank: as in docs/frameworks.md, or misused.

``python lightning_training.py JSON`` with the arguments of :func:`main`.
"""

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from superdl.experiments.models import declare_operators
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from tests.fixtures.images import SIDE
from tests.integration.frameworks import GLOBAL_BATCH, SEED, Stopped, code_of, named, write_down

declare_operators()  # Lightning's metrics import torchvision if installed
import lightning.pytorch as pl  # noqa: E402  # after that


class Classifier(pl.LightningModule):
    """The page's ``Classifier``: train, record the batches, and stop at the requested step.

    With ``out``, write the batches of this rank to a file that another process can read.
    """

    def __init__(self, stop_after=-1, out=None, *, whole_epoch=False):
        super().__init__()
        self.model = torch.nn.Linear(3 * SIDE * SIDE, 4)
        self.seen = []
        self.epochs = []
        self._stop_after, self._out, self._whole_epoch = stop_after, out, whole_epoch

    def training_step(self, batch, batch_index):
        images, labels = batch[:2]
        self.seen.append(named(images, labels))
        self.epochs.append(self.current_epoch)
        if self._out is not None:
            write_down(self._out, self.global_rank, self.seen[-1])
        return torch.nn.functional.cross_entropy(self.model(images.flatten(1).float() / 255), labels)

    def on_train_batch_end(self, *_):
        if not self._whole_epoch:
            self._maybe_stop()

    def on_train_epoch_end(self):
        self._maybe_stop()

    def _maybe_stop(self):
        if len(self.seen) == self._stop_after:
            self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/stopped.ckpt")
            raise Stopped

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Validated(Classifier):
    """A classifier that also records its validation batches."""

    def __init__(self):
        super().__init__()
        self.validated = []

    def validation_step(self, batch, batch_index):
        self.validated.append(named(*batch[:2]))


class ByWorkers(pl.LightningDataModule):
    """A DataLoader that is not told the epoch, as on the page."""

    def __init__(self, source, ranks=1):
        super().__init__()
        self._source, self._ranks = source, ranks

    def train_dataloader(self):
        return data_loader(self._source, self._ranks)


class ByThreads(ByWorkers):
    """The page's data module as a class that spawned processes can import."""

    def train_dataloader(self):
        return super_loader(self._source, self._ranks)


def super_loader(source, ranks=1):
    """A threaded loader whose batches also have non-tensors that Lightning may move, convert or measure."""
    dataset = SuperDataset(source, Recipe.image(resize=SIDE, crop=SIDE), return_info=True)
    return SuperLoader(
        dataset, SuperSampler(dataset, batch_size=GLOBAL_BATCH // ranks, shuffle=True, seed=SEED)
    )


def data_loader(source, ranks=1, **options):
    """A DataLoader with two persistent workers, unless ``options`` override that."""
    dataset = SuperDataset(source, Recipe.image(resize=SIDE, crop=SIDE), return_info=True)
    sampler = SuperSampler(dataset, batch_size=GLOBAL_BATCH // ranks, shuffle=True, seed=SEED)
    options = {"num_workers": 2, "persistent_workers": True} | options
    return DataLoader(dataset, sampler=sampler, batch_size=None, **options)


def main(source, out, ranks, how="page", stop_after=-1, checkpoint=None):
    """Train as on the page (also with ``threads``), by ``workers``, or with a loader created too early."""
    model = Classifier(stop_after, Path(out))
    if how == "page":
        names = code_of("Lightning", source, ranks=ranks)
        names["Classifier"] = lambda: model
        names["train"](checkpoint)
    elif how in ("workers", "threads"):
        data = {"workers": ByWorkers, "threads": ByThreads}[how](source, ranks)
        pl.Trainer(max_epochs=3).fit(model, data)
    else:
        loader = data_loader(source, ranks)
        pl.Trainer(max_epochs=3).fit(model, loader)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
