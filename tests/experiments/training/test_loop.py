"""The loop: that it learns, measures what it says, is deterministic and tells its listeners in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from superdl.experiments.data import Source
from superdl.experiments.loaders import LoaderRequest, open_loader
from superdl.experiments.models import build_model
from superdl.experiments.spec import LoaderSpec, RecipeSpec, Spec
from superdl.experiments.training import Trainer
from superdl.experiments.training.device import seed_everything

CPU = torch.device("cpu")


class Recorder:
    """Keeps all that a listener is told."""

    def __init__(self):
        self.calls = []
        self.steps = []
        self.epochs = []

    def on_pass_start(self, epoch, split, batches):
        self.calls.append((split, epoch, f"{batches} batches"))

    def on_steps(self, steps):
        self.steps += steps

    def on_epoch_end(self, summary):
        self.calls.append(("end", summary.epoch, f"{len(self.steps)} steps"))
        self.epochs.append(summary)


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    """Two classes that mean colour cannot tell: noisy horizontal and vertical stripes, 60 images each."""
    directory = tmp_path_factory.mktemp("stripes")
    rng = np.random.default_rng(0)
    waves = np.where(np.arange(16) % 4 < 2, 60, 190)
    for name in ("horizontal", "vertical"):
        (directory / name).mkdir()
        for index in range(60):
            clean = np.broadcast_to(np.roll(waves, index), (16, 16))
            clean = clean.T if name == "horizontal" else clean
            noisy = (clean + rng.integers(-40, 40, (16, 16))).astype(np.uint8)
            Image.fromarray(noisy).convert("RGB").save(directory / name / f"{index}.png")
    return directory


def opened(directory, *, training):
    return open_loader(
        LoaderRequest(
            source=Source(f"file://{directory}"),
            recipe=RecipeSpec(resize=16, crop=16),
            loader=LoaderSpec(kind="torch", batch_size=5, num_workers=0),
            training=training,
            seed=0,
            pin_memory=False,
        ),
    )


def trained(directory, *, epochs, listeners=(), read_gpu=lambda: None):
    seed_everything(0)
    trainer = Trainer(
        build_model("small_cnn", 2, CPU),
        opened(directory, training=True),
        opened(directory, training=False),
        Spec(epochs=epochs, loader=LoaderSpec(kind="torch")),
        device=CPU,
        listeners=listeners,
        read_gpu=read_gpu,
    )
    return trainer.fit()


def failing(error, step):
    """Fails when the step of a number is taken."""
    left = iter(range(step))

    def read_gpu():
        if next(left, None) is None:
            raise error

    return read_gpu


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("of the model")])
def test_steps_before_a_failure_are_told(stripes, error):
    recorder = Recorder()
    with pytest.raises(type(error)) as failed:
        trained(stripes, epochs=1, listeners=[recorder], read_gpu=failing(error, 7))
    assert failed.value is error
    assert [step.step for step in recorder.steps] == list(range(7))


def test_a_model_learns_and_listeners_hear_of_it_in_order(stripes):
    recorder = Recorder()
    epochs = trained(stripes, epochs=2, listeners=[recorder])
    last = epochs[-1]
    assert last.val is not None
    assert last.val.accuracy > 0.97
    assert last.train.loss < epochs[0].train.loss
    assert tuple(recorder.epochs) == epochs
    assert recorder.calls == [
        ("train", 0, "24 batches"),
        ("val", 0, "24 batches"),
        ("end", 0, "48 steps"),
        ("train", 1, "24 batches"),
        ("val", 1, "24 batches"),
        ("end", 1, "96 steps"),
    ]
    assert [(step.epoch, step.split, step.step) for step in recorder.steps] == [
        (epoch, split, step) for epoch in range(2) for split in ("train", "val") for step in range(24)
    ]
