"""SUPER inside Hugging Face Accelerate: docs/frameworks.md as it stands, what it refuses, and going on."""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from sampler import SuperSampler
from super_dataset import Recipe, SuperDataset
from super_wire.errors import UsageError
from tests.fixtures.images import SIDE
from tests.fixtures.stack import Stack
from tests.integration.frameworks import EPOCHS, Batch, Stopped, code_of, named, plain_loop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
def ready(shared: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPER_COORDINATOR", shared.address)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


class Steps:
    """The page's ``step``: trains, remembers what came, saves, and stops where it is told to."""

    def __init__(self, save: Path | None = None, stop_after: int = -1) -> None:
        self.seen: list[Batch] = []
        self._save, self._stop_after = save, stop_after

    def __call__(
        self, accelerator: Accelerator, model: Any, optimizer: Any, images: Any, labels: Any
    ) -> None:
        self.seen.append(named(images, labels))
        loss = torch.nn.functional.cross_entropy(model(images.flatten(1).float() / 255), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if len(self.seen) == self._stop_after:
            accelerator.save_state(str(self._save))
            raise Stopped


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3 * SIDE * SIDE, 4)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def test_the_page_trains_on_what_a_plain_loop_gets(images: Path, expected: list[list[Batch]]) -> None:
    steps = Steps()
    code_of("Accelerate", images.as_uri())["train"](*parts(), steps)
    assert steps.seen == list(chain.from_iterable(expected))


@pytest.mark.parametrize("taken", [4, 10, 13])
def test_a_saved_state_is_gone_on_with(
    images: Path, expected: list[list[Batch]], tmp_path: Path, taken: int
) -> None:
    train = code_of("Accelerate", images.as_uri())["train"]
    first, then = Steps(tmp_path / "state", taken), Steps()
    with pytest.raises(Stopped):
        train(*parts(), first)
    train(*parts(), then, str(tmp_path / "state"))
    assert first.seen + then.seen == list(chain.from_iterable(expected))
    assert len(expected) == EPOCHS


def test_a_prepared_data_loader_is_refused(images: Path) -> None:
    dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=16) as sampler:
        prepared = Accelerator().prepare(DataLoader(dataset, sampler=sampler, batch_size=None))
        with pytest.raises(UsageError, match=r"Accelerate's prepare\(\) is not to be given the loader"):
            next(iter(prepared))
