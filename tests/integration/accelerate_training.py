"""A training step for tests, and a program that runs it as one rank: as in docs/frameworks.md, or misused.

``python accelerate_training.py JSON`` with the arguments of :func:`main`.
"""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE
from tests.integration.frameworks import (
    BATCHES,
    EPOCHS,
    GLOBAL_BATCH,
    Stopped,
    code_of,
    named,
    write_down,
)


class Steps:
    """The page's ``step``: train, record the batches, save, and stop at the requested step.

    With ``out``, write the batches of this rank to a file that another process can read.
    """

    def __init__(self, save=None, stop_after=-1, out=None):
        self.seen = []
        self.rates = []
        self._save, self._stop_after, self._out = save, stop_after, out

    def __call__(self, accelerator, model, optimizer, schedule, images, labels):
        self.seen.append(named(images, labels))
        self.rates += schedule.get_last_lr()
        if self._out is not None:
            write_down(self._out, accelerator.process_index, self.seen[-1])
            (self._out / f"rates{accelerator.process_index}.json").write_text(json.dumps(self.rates))
        loss = torch.nn.functional.cross_entropy(model(images.flatten(1).float() / 255), labels)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if len(self.seen) == self._stop_after:
            accelerator.save_state(str(self._save))
            raise Stopped


def parts():
    model = torch.nn.Linear(3 * SIDE * SIDE, 4)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def planned_rates():
    """The learning rate of each step under the page's schedule in a plain loop."""
    _, optimizer = parts()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * BATCHES)
    rates = []
    for _ in range(EPOCHS * BATCHES):
        rates += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    return rates


def main(source, out, ranks, how="page", stop_after=-1, checkpoint=None):
    """Train as on the page, or with a misuse it warns about: a prepared DataLoader, or a longer schedule."""
    if how == "page":
        steps = Steps(Path(out) / "state", stop_after, Path(out))
        code_of("Accelerate", source, ranks=ranks)["train"](*parts(), steps, checkpoint)
    elif how == "schedule":
        names = code_of("Accelerate", source, ranks=ranks)
        names["DataLoaderConfiguration"] = lambda **_: None
        names["train"](*parts(), Steps())
    else:
        accelerator = Accelerator()
        next(iter(accelerator.prepare(data_loader(source, ranks))))


def data_loader(source, ranks=1):
    """A loader that must not be passed to ``prepare``."""
    dataset = SuperDataset(source, Recipe.image(resize=SIDE, crop=SIDE))
    sampler = SuperSampler(dataset, batch_size=GLOBAL_BATCH // ranks, shuffle=True)
    return DataLoader(dataset, sampler=sampler, batch_size=None)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
