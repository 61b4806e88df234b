"""Compare SUPER to a DataLoader with Pillow on this machine, without training: ``superdl demo``.

Each loader reads in its own process, ``python -m superdl.experiments.loaders.demo TASK``.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from torch.utils.data import DataLoader, Dataset

from superdl.coordinator import catalog  # noqa: F401  # not while timed
from superdl.experiments.console import print_rows, say
from superdl.experiments.data import MADE_SETS, Source, make_set
from superdl.experiments.loaders.decoding import stack
from superdl.experiments.loaders.samples import ImageMaker, Samples, list_samples
from superdl.experiments.reporting.page import count, number, seconds
from superdl.experiments.spec import RecipeSpec
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from superdl.super_wire.errors import BadSampleError, ConfigError, SuperError
from superdl.super_wire.host import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from superdl.experiments.console import Console

SUPER, PILLOW = "SUPER", "DataLoader + Pillow"
_MADE_IN, _MADE_SET = "data/demo", "imagenet-like"
_IMAGES, _FEWEST = 1500, 64
_DECODING_S = 50.0  # of all epochs; limits the number of large photos
_DECODING_EPOCHS = 4
_PROBED = 8
_BATCH_SIZE, _RESIZE, _CROP = 64, 256, 224
_BUSY = 0.5
_ENDING_S = 20.0  # for SUPER's services to end before the next process is measured
_BAR = 44  # characters of the longest bar
_FEW = 1.5  # smaller factors are shown as a percentage

_COLUMNS = ("first epoch", "second epoch", "fresh process")
_NOTHING_TRAINED = "Nothing is trained: batches are read and dropped"
_REASONS = (
    "It starts its services, and decodes every image for the first and only time.",
    "Nothing is decoded.",
    "It starts its services again, and reads the stored images.",
)
_LINES = """\
from superdl import Recipe, SuperDataset, SuperLoader

dataset = SuperDataset(
    {directory},
    recipe=Recipe.image(resize={resize}, crop={crop}),  # decoded once, then kept
    transform=None,  # your own, such as Augment({crop}); runs in every epoch
)
loader = SuperLoader(dataset, batch_size={batch_size}, shuffle=True)  # with a GPU: device="cuda"
for epoch in range(3):
    for images, labels in loader:  # uint8 [{batch_size}, 3, {crop}, {crop}], int64 [{batch_size}]
        images = images.float() / 255
        ...  # your model's step
"""


@dataclass(frozen=True, slots=True)
class Task:
    """The images to read: those in a directory of class folders, or in a key list."""

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


def demo(named: str | None, images: int | None, console: Console) -> dict[str, Any]:
    """Measure both loaders, print the figures, and return them for JSON.

    Args:
        named: a folder with a folder of images for each class; by default drawn images, ``data/demo``.
        images: the number of images to read; by default 1,500, or fewer if decoding is slow.
        console: receives all output.

    Raises:
        SuperError: the images cannot be read, or a process failed; the message states the reason.
    """
    print_line, cores = partial(say, console), usable_cores()
    load, _, _ = os.getloadavg()
    if load > _BUSY * cores:
        print_line(f"this machine is busy (load {load:.1f} on {cores} cores), which will affect the figures")
    directory = _directory(named, print_line)
    epochs: dict[str, list[Epoch]] = {PILLOW: [], SUPER: []}
    with tempfile.TemporaryDirectory(prefix="super-demo-", ignore_cleanup_errors=True) as scratch:
        key_list, chosen, total = _chosen(directory, images, cores, Path(scratch))
        read = f"{chosen:,} images" if chosen == total else f"{chosen:,} of {total:,} images"
        print_line(f"reading {read} from {directory}, resized to {_RESIZE} and cropped to {_CROP}")
        workers = min(cores, -(-chosen // _BATCH_SIZE))
        task = Task(PILLOW, str(directory), key_list, 2, _BATCH_SIZE, workers, _RESIZE, _CROP)
        # Fresh processes have lost the cache, and keep the store.
        for epoch_count, loader in ((2, PILLOW), (2, SUPER), (1, PILLOW), (1, SUPER)):
            print_line(f"  {loader}: {'two epochs' if epoch_count > 1 else 'an epoch'} in a fresh process")
            measured = _measured(replace(task, loader=loader, epochs=epoch_count), f"{scratch}/store")
            epochs[loader] += measured
    Results(chosen, task, epochs).print(console)
    figures = {loader: [asdict(epoch) for epoch in loader_epochs] for loader, loader_epochs in epochs.items()}
    return {"directory": str(directory), **figures}


def _directory(named: str | None, print_line: Callable[[str], None]) -> Path:
    """Return the user's folder, or one with drawn images, which are made once."""
    if named is not None:
        directory = Path(named).expanduser().absolute()
        if not directory.is_dir():
            raise ConfigError(f"{named} is not a folder on this machine; the demo reads only files")
        return directory
    return make_set(MADE_SETS[_MADE_SET], _MADE_IN, samples=_IMAGES, tell=print_line) / "train"


def _chosen(directory: Path, most: int | None, cores: int, scratch: Path) -> tuple[str | None, int, int]:
    """Choose evenly spaced images. Return a key list, or None for all, and their number and the total."""
    samples = list_samples(Source(f"file://{directory}"), "torch")
    total = len(samples)
    if most is None:
        make = ImageMaker(RecipeSpec(resize=_RESIZE, crop=_CROP), samples)
        probed = range(0, total, -(-total // _PROBED))
        began_s = time.perf_counter()
        for index in probed:
            with contextlib.suppress(BadSampleError):  # both loaders skip it
                make(samples.read(index), samples.keys[index], 0)
        each_s = (time.perf_counter() - began_s) / len(probed)
        most = min(_IMAGES, max(_FEWEST, int(_DECODING_S * cores / _DECODING_EPOCHS / each_s)))
    chosen = [place * total // most for place in range(most)] if most < total else range(total)
    # Both loaders then find each image in the page cache.
    for index in chosen:
        samples.read(index)
    if len(chosen) == total:
        return None, total, total
    key_list = scratch / "images.jsonl"
    rows = [{"key": samples.keys[index], "label": samples.classes[samples.labels[index]]} for index in chosen]
    key_list.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(key_list), most, total


def _measured(task: Task, store: str) -> list[Epoch]:
    """Run a task in a fresh process, and wait until its services have ended."""
    # The user's own coordinator, cache or store would be measured too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    command = [sys.executable, "-P", "-m", "superdl.experiments.loaders.demo", json.dumps(asdict(task))]
    process = subprocess.run(
        command, env=environment | {"SUPER_STORE": store}, capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise SuperError(f"{task.loader} failed: {process.stderr.strip()}")
    output = json.loads(process.stdout)
    services = []
    # They would take CPU time from the next process.
    for pid in output["services"]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
            services.append(psutil.Process(pid))
    psutil.wait_procs(services, timeout=_ENDING_S)
    return [Epoch(**epoch) for epoch in output["epochs"]]


# --------------------------------------------------------------------------------------------- results


_FIGURES: dict[str, Callable[[Epoch], float]] = {
    "images/s": lambda epoch: epoch.images / epoch.wall_s,
    "CPU, ms/image": lambda epoch: 1e3 * epoch.cpu_s / epoch.images,
    "images decoded": lambda epoch: epoch.decodes,
}


@dataclass(frozen=True, slots=True)
class Results:
    """The measurements with ``count`` images, as epochs by loader."""

    count: int
    task: Task
    epochs: Mapping[str, Sequence[Epoch]]

    def lines(self) -> str:
        """Return the lines of a script that reads images as SUPER did in the demo."""
        fields = asdict(self.task)
        return _LINES.format(**fields | {"directory": json.dumps(self.task.directory, ensure_ascii=False)})

    def print(self, console: Console) -> None:
        """Print everything."""
        print_rows(console, ("", *_COLUMNS), self._rows(), title=_NOTHING_TRAINED)
        self._plot_rates(console)
        say(console, "\n" + "\n".join(self._sentences()))
        say(console, f"\nIn your script:\n\n{self.lines()}")

    def _plot_rates(self, console: Console) -> None:
        rates = {
            f"{column}, {loader}": epochs[place].images / epochs[place].wall_s
            for place, column in enumerate(_COLUMNS)
            for loader, epochs in self.epochs.items()
        }
        width, longest = max(map(len, rates)), max(rates.values())
        say(console, "images/s")
        for name, rate in rates.items():
            say(console, f"  {name:{width}}  {'█' * max(1, round(_BAR * rate / longest))} {number(rate)}")

    def _rows(self) -> list[tuple[str, ...]]:
        rows = []
        for title, figure in _FIGURES.items():
            write = count if title == "images decoded" else number
            for loader, epochs in self.epochs.items():
                rows.append((f"{title}: {loader}", *(write(figure(epoch)) for epoch in epochs)))
        return rows

    def _sentences(self) -> Iterator[str]:
        pairs = zip(self.epochs[SUPER], self.epochs[PILLOW], strict=True)
        for column, (ours, theirs), reason in zip(_COLUMNS, pairs, _REASONS, strict=True):
            rate, cpu, _ = (_ratio(figure(ours), figure(theirs)) for figure in _FIGURES.values())
            speed = f"{SUPER} reads {rate} the images/s of {PILLOW}, using {cpu} its CPU"
            yield f"{column.capitalize()}: {speed}. {reason}"
        first, second, fresh = self.epochs[SUPER]
        yield (
            f"Its start (about {number(fresh.wall_s - second.wall_s, 2)} s) is part of the first and the "
            "last column, and matters less with more images. CPU covers all processes, but not imports."
        )
        ten = {name: epochs[0].wall_s + 9 * epochs[1].wall_s for name, epochs in self.epochs.items()}
        yield "Ten such epochs: " + ", ".join(f"{seconds(s)} with {name}" for name, s in ten.items()) + "."
        if bad := self.count - first.images:
            yield (
                f"Both loaders skip {count(bad, 'image')} that cannot be decoded: superdl doctor "
                f"{shlex.quote(self.task.directory)} --all lists such files."
            )


def _ratio(part: float, whole: float) -> str:
    value = part / whole
    return f"{number(value, 2)} times" if value >= _FEW else f"{number(100 * value, 2)}% of"


# ------------------------------------------------------------------------------- in a process of its own


class _Images(Dataset[Any]):
    """An ImageFolder that decodes on access. A broken image is None."""

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
    """Open a DataLoader as its documentation shows."""
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
    """Open SUPER as its README shows."""
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
    """Measure the task from the command line, and print its epochs and the services still running."""
    try:
        epochs = [asdict(epoch) for epoch in measure(Task(**json.loads(sys.argv[1])))]
    except SuperError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    services = [process.pid for process in psutil.Process().children(recursive=True)]
    sys.stdout.write(json.dumps({"epochs": epochs, "services": services}) + "\n")


if __name__ == "__main__":
    main()
