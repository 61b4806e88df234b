"""Read epochs with one loader in a process of its own, and print figures."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psutil
from torch.utils.data import DataLoader, Dataset

from superdl.coordinator import catalog  # noqa: F401  # not while timed
from superdl.experiments.data import Source
from superdl.experiments.loaders.decoding import stack
from superdl.experiments.loaders.samples import ImageMaker, Samples, list_samples
from superdl.experiments.spec import RecipeSpec
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from superdl.super_wire.errors import BadSampleError, SuperError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

SUPER, PILLOW = "SUPER", "DataLoader + Pillow"


@dataclass(frozen=True, slots=True)
class Task:
    """The images to read: a directory of class folders, or those in a key list."""

    loader: str
    directory: str
    key_list: str | None
    epochs: int
    batch_size: int
    workers: int  # of the DataLoader
    resize: int  # pixels of the shorter side
    crop: int  # pixels of the centre square


@dataclass(frozen=True, slots=True)
class Epoch:
    """Images read and decoded, wall seconds, and CPU seconds of all processes."""

    images: int
    decodes: int
    wall_s: float
    cpu_s: float


class _Images(Dataset[Any]):
    """An ImageFolder that decodes on access; a broken image is None."""

    def __init__(self, samples: Samples, make: ImageMaker) -> None:
        self._samples, self._make = samples, make

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int] | None:
        content = self._samples.read(index)
        try:
            pixels = self._make(content, self._samples.keys[index], 0)
        except BadSampleError:  # SUPER skips it too
            return None
        return pixels, self._samples.labels[index]


def _collate(pairs: Sequence[tuple[NDArray[np.uint8], int] | None]) -> Any:
    good = [pair for pair in pairs if pair is not None]
    return stack([pixels for pixels, _ in good], [label for _, label in good]) if good else ((), ())


def _open_pillow(task: Task) -> Any:
    """Open a DataLoader as documented."""
    samples = list_samples(Source(f"file://{task.directory}", key_list=task.key_list), "torch")
    make = ImageMaker(RecipeSpec(resize=task.resize, crop=task.crop), samples)
    return DataLoader(
        _Images(samples, make),
        batch_size=task.batch_size,
        shuffle=True,
        num_workers=task.workers,
        # Else each epoch would start them again.
        persistent_workers=task.workers > 0,
        collate_fn=_collate,
    )


def _open_super(task: Task) -> Any:
    """Open SUPER as in its README."""
    dataset = SuperDataset(
        task.directory,
        recipe=Recipe.image(resize=task.resize, crop=task.crop),
        key_list=task.key_list,
        on_bad_sample="skip",
    )
    return SuperLoader(dataset, SuperSampler(dataset, batch_size=task.batch_size))


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its descendants, including ended ones."""
    own, total_s = psutil.Process(), 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended: its parent counts its time
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def measure(task: Task) -> list[Epoch]:
    """Read the epochs of a task in this fresh process."""
    # After the imports. The first epoch includes opening the loader and its services.
    cpu_s, began_s, produced, epochs = _cpu_s(), time.perf_counter(), 0, []
    loader = _open_super(task) if task.loader == SUPER else _open_pillow(task)
    for _ in range(task.epochs):
        images = decodes = sum(len(labels) for _, labels in loader)
        wall_s, spent_s = time.perf_counter() - began_s, _cpu_s() - cpu_s
        if task.loader == SUPER:
            before, produced = produced, int(loader.sampler.job_stats().samples_produced)
            decodes = produced - before
        epochs.append(Epoch(images, decodes, wall_s, spent_s))
        began_s, cpu_s = time.perf_counter(), _cpu_s()
    return epochs


def main() -> None:
    """Measure the command line's task; print its epochs and the services still running."""
    try:
        epochs = [asdict(epoch) for epoch in measure(Task(**json.loads(sys.argv[1])))]
    except SuperError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    services = [process.pid for process in psutil.Process().children(recursive=True)]
    sys.stdout.write(json.dumps({"epochs": epochs, "services": services}) + "\n")


if __name__ == "__main__":
    main()
