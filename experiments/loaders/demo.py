"""``superdl demo``: compare SUPER with a DataLoader and Pillow on this machine, without training.

Each loader runs in its own process, ``python -m superdl.experiments.loaders.demo TASK``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Subset

from superdl.coordinator.catalog import is_image  # imported here to exclude it from timing
from superdl.experiments.console import print_rows, say
from superdl.experiments.data import MADE_SETS, Source, make_set
from superdl.experiments.loaders.decoding import Decode, SourceFiles
from superdl.experiments.loaders.samples import decode_image, list_samples
from superdl.experiments.monitoring import ProcessGroups
from superdl.experiments.reporting.page import number, seconds
from superdl.experiments.spec import RecipeSpec
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from superdl.super_wire.display import counted
from superdl.super_wire.errors import ConfigError, SourceEmptyError, SourceError, SuperError
from superdl.super_wire.host import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from superdl.experiments.console import Console
    from superdl.experiments.loaders.samples import Samples

SUPER, PILLOW = "SUPER", "DataLoader + Pillow"
_MADE_IN = "data/demo"
_MADE_SET = "imagenet-like"
_IMAGES = 1500
_PROBED = 8
# Decoding all epochs takes at most about this long; otherwise, fewer images are read.
_DECODING_S, _DECODING_EPOCHS = 50.0, 4
_BATCH_SIZE = 64
_RESIZE, _CROP = 256, 224
_BAR_WIDTH = 44  # of the longest bar, in characters
_ERROR_LINES = 20
# The epochs measured for each loader.
_COLUMNS = ("first epoch", "second epoch", "fresh process")
_LINES = """\
from superdl import Recipe, SuperDataset, SuperLoader

dataset = SuperDataset(
    {directory},
    recipe=Recipe.image(resize={resize}, crop={crop}),  # add transform= for what runs in every epoch
{policy})
loader = SuperLoader(dataset, batch_size={batch_size}, shuffle=True)  # on a GPU: device="cuda"
for epoch in range(3):
    for images, labels in loader:  # uint8 [{batch_size}, 3, {crop}, {crop}], int64 [{batch_size}]
        images = images.float() / 255
        ...  # your model's step
"""


@dataclass(frozen=True, slots=True)
class Task:
    """A measurement of ``loader`` over epochs of evenly spaced images in a directory of class folders."""

    loader: str
    directory: str
    images: int
    epochs: int
    workers: int  # of the DataLoader


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch's counts of images read and decoded, its wall time, and the CPU time of all processes."""

    images: int
    decodes: int
    wall_s: float
    cpu_s: float


def demo(named: str | None, images: int | None, console: Console) -> dict[str, Any]:
    """Measure both loaders, print the results, and return them as plain values for JSON.

    Args:
        named: a directory of class folders, by default generated images in ``data/demo``.
        images: the maximum number of images to read, evenly spaced, by default up to 1,500.
        console: the console for all output.

    Raises:
        SuperError: the images cannot be read, or a process failed.
    """
    print_line = partial(say, console)
    directory = _directory(named, print_line)
    samples = _listed(directory)
    chosen = _chosen(len(samples), images or _affordable(samples))
    print_line(
        f"reading {len(chosen):,} of {len(samples):,} images from {directory}, resized to {_RESIZE} and "
        f"cropped to {_CROP}"
    )
    # Afterwards, both loaders read images from the page cache.
    for index in chosen:
        samples.read(index)
    workers = min(usable_cores(), ceil(len(chosen) / _BATCH_SIZE))
    task = Task(PILLOW, str(directory), len(chosen), 2, workers)
    epochs: dict[str, list[Epoch]] = {PILLOW: [], SUPER: []}
    with tempfile.TemporaryDirectory(prefix="super-demo-", ignore_cleanup_errors=True) as scratch:
        # A fresh process has an empty cache, but the store remains.
        for count, loader in ((2, PILLOW), (2, SUPER), (1, PILLOW), (1, SUPER)):
            print_line(f"  {loader}: {'two epochs' if count > 1 else 'an epoch'} in a fresh process")
            epochs[loader] += _measured(replace(task, loader=loader, epochs=count), f"{scratch}/store")
            if not epochs[loader][0].images:
                raise ConfigError(
                    f"none of {counted(len(chosen), 'image')} in {directory} can be decoded; for the "
                    f"reasons, run superdl doctor {shlex.quote(str(directory))} --all"
                )
    print_rows(console, ("", *_COLUMNS), _rows(epochs), title="Nothing is trained: batches are dropped")
    _plot_rates(epochs, print_line)
    _, second, fresh = (epoch.wall_s for epoch in epochs[SUPER])
    print_line(
        "In its first epoch SUPER starts its services and decodes every image; later epochs decode nothing. "
        f"A fresh process starts them again, in about {seconds(max(0.0, fresh - second))}, and reads the "
        "stored images. The more images, the less the start counts."
    )
    if bad := len(chosen) - epochs[SUPER][0].images:
        print_line(
            f"Both loaders skipped {counted(bad, 'image')} that cannot be decoded. To list such files, run "
            f"superdl doctor {shlex.quote(str(directory))} --all."
        )
    print_line(f"\nIn your script:\n\n{script_lines(str(directory), skips_bad=bad > 0)}")
    results = {loader: [asdict(epoch) for epoch in loader_epochs] for loader, loader_epochs in epochs.items()}
    return {"directory": str(directory), **results}


def script_lines(directory: str, *, skips_bad: bool = False) -> str:
    """Return a script that reads ``directory`` with SUPER, as in the demo."""
    quoted = json.dumps(directory, ensure_ascii=False)
    policy = '    on_bad_sample="skip",\n' if skips_bad else ""
    return _LINES.format(directory=quoted, resize=_RESIZE, crop=_CROP, batch_size=_BATCH_SIZE, policy=policy)


def _directory(named: str | None, print_line: Callable[[str], None]) -> Path:
    if named is None:
        return make_set(MADE_SETS[_MADE_SET], _MADE_IN, samples=_IMAGES, log=print_line) / "train"
    directory = Path(named).expanduser().absolute()
    if not directory.is_dir():
        raise ConfigError(f"{named} is not a folder on this machine, and the demo reads only local folders")
    # A class folder contains no folders, but a split does.
    if any(entry.is_dir() for entry in directory.glob("train/*")):
        directory /= "train"
        print_line(f"using the split {directory}")
    return directory


def _listed(directory: Path) -> Samples:
    try:
        return list_samples(Source(f"file://{directory}"), "torch")
    except SourceError as error:
        loose = sum(is_image(entry.name) for entry in directory.iterdir())
        if not loose and not isinstance(error, SourceEmptyError):
            raise
        if not loose:
            raise ConfigError(
                f"{directory} contains no images: the demo needs a folder of them for each class, such as "
                f"{directory}/cats/1.jpg"
            ) from error
        raise ConfigError(
            f"{directory} contains {counted(loose, 'image')}, but no class folders: move each image to a "
            f"folder named after its class, such as {directory}/cats. To train without classes, run superdl "
            f"index {shlex.quote(str(directory))} -o list.jsonl --labels none, and pass "
            "key_list='list.jsonl' to SuperDataset"
        ) from error


def _affordable(samples: Samples) -> int:
    """Estimate how many images the demo has time to decode, by decoding a few."""
    probed = _chosen(len(samples), _PROBED)
    began_s = time.perf_counter()
    for index in probed:
        with contextlib.suppress(Exception):  # loaders skip corrupt files, too
            decode_image(samples.read(index), resize=_RESIZE, crop=_CROP)
    each_s = (time.perf_counter() - began_s) / len(probed)
    return min(_IMAGES, max(_BATCH_SIZE, int(_DECODING_S * usable_cores() / _DECODING_EPOCHS / each_s)))


def _chosen(total: int, images: int) -> list[int]:
    """Return the indices of evenly spaced images, or of all ``total`` if there are fewer."""
    count = min(total, images)
    return [place * total // count for place in range(count)]


def _rows(epochs: Mapping[str, Sequence[Epoch]]) -> Iterator[tuple[str, ...]]:
    rows: dict[str, Callable[[Epoch], str]] = {
        "images/s": lambda epoch: number(epoch.images / epoch.wall_s),
        "CPU, ms/image": lambda epoch: number(1e3 * epoch.cpu_s / epoch.images),
        "images decoded": lambda epoch: f"{epoch.decodes:,}",
    }
    for title, cell in rows.items():
        for loader, loader_epochs in epochs.items():
            yield f"{title}: {loader}", *map(cell, loader_epochs)


def _plot_rates(epochs: Mapping[str, Sequence[Epoch]], print_line: Callable[[str], None]) -> None:
    rates = {
        f"{column}, {loader}": loader_epochs[index].images / loader_epochs[index].wall_s
        for index, column in enumerate(_COLUMNS)
        for loader, loader_epochs in epochs.items()
    }
    width, highest = max(map(len, rates)), max(rates.values())
    print_line("images/s")
    for name, rate in rates.items():
        print_line(f"  {name:{width}}  {'█' * max(1, round(_BAR_WIDTH * rate / highest))} {number(rate)}")


def _measured(task: Task, store: str) -> list[Epoch]:
    """Run a task in a fresh process, which stops its services before it exits."""
    # Do not measure the user's own coordinator, cache or store.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    command = [sys.executable, "-P", "-m", "superdl.experiments.loaders.demo", json.dumps(asdict(task))]
    process = subprocess.run(
        command, env=environment | {"SUPER_STORE": store}, capture_output=True, text=True, check=False
    )
    if process.returncode:
        # The last lines contain the error, after whatever was logged.
        why = "\n".join(process.stderr.strip().splitlines()[-_ERROR_LINES:])
        raise SuperError(f"{task.loader} failed: {why}")
    return [Epoch(**epoch) for epoch in json.loads(process.stdout)]


# ------------------------------------------------------------------------------- in a process of its own


def _open_pillow(task: Task) -> Any:
    samples = list_samples(Source(f"file://{task.directory}"), "torch")
    return DataLoader(
        Subset(SourceFiles(samples), _chosen(len(samples), task.images)),
        batch_size=_BATCH_SIZE,
        shuffle=True,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        collate_fn=Decode(samples, RecipeSpec(resize=_RESIZE, crop=_CROP), skips_bad=True),
    )


def _open_super(task: Task) -> Any:
    recipe = Recipe.image(resize=_RESIZE, crop=_CROP)
    dataset = SuperDataset(task.directory, recipe=recipe, on_bad_sample="skip")
    chosen = Subset(dataset, _chosen(len(dataset), task.images))
    return SuperLoader(chosen, batch_size=_BATCH_SIZE, shuffle=True)


def measure(task: Task) -> list[Epoch]:
    """Measure a task's epochs in this process, which must be fresh."""
    processes = ProcessGroups()

    def used_s() -> float:
        return sum(group.cpu_s for group in processes.read().values())

    # The first epoch includes opening the loader and starting its services, but no imports.
    cpu_s, began_s, produced, epochs = used_s(), time.perf_counter(), 0, []
    loader = _open_super(task) if task.loader == SUPER else _open_pillow(task)
    for _ in range(task.epochs):
        images = decodes = sum(len(batch[1]) for batch in loader)
        wall_s, spent_s = time.perf_counter() - began_s, used_s() - cpu_s
        if task.loader == SUPER:
            before, produced = produced, int(loader.sampler.job_stats().samples_produced)
            decodes = produced - before
        epochs.append(Epoch(images, decodes, wall_s, spent_s))
        began_s, cpu_s = time.perf_counter(), used_s()
    return epochs


def main() -> None:
    """Measure the task given on the command line, print its epochs, and stop its services."""
    try:
        epochs = [asdict(epoch) for epoch in measure(Task(**json.loads(sys.argv[1])))]
    except SuperError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.write(json.dumps(epochs) + "\n")
    from superdl.sampler.embedded.embedded import release_all

    release_all()  # else they would use CPU time during the next measurement


if __name__ == "__main__":
    main()
