"""SUPER inside Lightning's Trainer: docs/frameworks.md as it stands, what it refuses, and going on."""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader

from sampler import SuperSampler
from super_dataset import Recipe, SuperDataset
from super_wire.errors import UsageError
from tests.fixtures.images import SIDE
from tests.fixtures.stack import Stack
from tests.integration.frameworks import BATCHES, Batch, Stopped, code_of, named, plain_loop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings(
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated"
    ),  # Lightning 2.6 asks it
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Stack]:
    running = Stack(arguments=("--workers", str(os.cpu_count() or 1)))
    running.start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def expected(shared: Stack, images: Path) -> list[list[Batch]]:
    return plain_loop(images.as_uri(), shared.address)


@pytest.fixture(autouse=True)
def ready(shared: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page's Trainer has no more arguments than it needs; the test's own come from the environment."""
    monkeypatch.setenv("SUPER_COORDINATOR", shared.address)
    for name in ("LOGGER", "ENABLE_CHECKPOINTING", "ENABLE_PROGRESS_BAR", "ENABLE_MODEL_SUMMARY"):
        monkeypatch.setenv(f"PL_TRAINER_{name}", "False")
    monkeypatch.setenv("PL_TRAINER_ACCELERATOR", "cpu")
    monkeypatch.setenv("PL_TRAINER_DEFAULT_ROOT_DIR", str(tmp_path))


class Classifier(pl.LightningModule):
    """The page's ``Classifier``: trains, remembers what came, and stops where it is told to."""

    def __init__(self, stop_after: int = -1) -> None:
        super().__init__()
        self.model = torch.nn.Linear(3 * SIDE * SIDE, 4)
        self.seen: list[Batch] = []
        self.epochs: list[int] = []
        self._stop_after = stop_after

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        images, labels = batch[:2]
        self.seen.append(named(images, labels))
        self.epochs.append(self.current_epoch)
        return torch.nn.functional.cross_entropy(self.model(images.flatten(1).float() / 255), labels)

    def on_train_batch_end(self, *_: Any) -> None:
        if len(self.seen) == self._stop_after:
            self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/stopped.ckpt")
            raise Stopped

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def page(images: Path, model: Classifier) -> Any:
    """The page's code, with a model."""
    names = code_of("Lightning", images.as_uri())
    names["Classifier"] = lambda: model
    return names["train"]


def test_the_page_trains_on_what_a_plain_loop_gets(images: Path, expected: list[list[Batch]]) -> None:
    model = Classifier()
    page(images, model)()
    assert model.seen == list(chain.from_iterable(expected))
    assert model.epochs == [epoch for epoch in range(len(expected)) for _ in range(BATCHES)]


@pytest.mark.parametrize("taken", [4, 10, 13])
def test_a_checkpoint_is_gone_on_with(
    images: Path, expected: list[list[Batch]], tmp_path: Path, taken: int
) -> None:
    first, then = Classifier(taken), Classifier()
    with pytest.raises(Stopped):
        page(images, first)()
    page(images, then)(str(tmp_path / "stopped.ckpt"))
    assert first.seen + then.seen == list(chain.from_iterable(expected))


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_an_epochs_checkpoint_is_gone_on_with(
    images: Path, expected: list[list[Batch]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PL_TRAINER_ENABLE_CHECKPOINTING", "True"
    )  # at the end of each epoch, unless told otherwise
    with pytest.raises(Stopped):
        page(images, Classifier(BATCHES + 1))()
    then = Classifier()
    page(images, then)(str(tmp_path / f"checkpoints/epoch=0-step={BATCHES}.ckpt"))
    assert then.seen == list(chain.from_iterable(expected[1:]))


def test_overfit_batches_is_refused(images: Path) -> None:
    dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=16) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        with (
            pytest.warns(UserWarning, match="You requested to overfit"),
            pytest.raises(UsageError, match="Lightning's Trainer no overfit_batches"),
        ):
            pl.Trainer(overfit_batches=2, max_epochs=1).fit(Classifier(), loader)
