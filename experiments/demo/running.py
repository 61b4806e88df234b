"""Choose images, measure loaders in separate processes, and present the results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from superdl.experiments.console import say
from superdl.experiments.data import MADE_SETS, Source, make_set
from superdl.experiments.demo.measuring import PILLOW, SUPER, Epoch, Task
from superdl.experiments.demo.showing import Shown
from superdl.experiments.loaders.samples import ImageMaker, list_samples
from superdl.experiments.output import new_directory, write_whole
from superdl.experiments.reporting.page import PAGE_NAME
from superdl.experiments.spec import RecipeSpec
from superdl.super_wire.errors import BadSampleError, ConfigError, SuperError
from superdl.super_wire.host import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.experiments.console import Console

__all__ = ["demo"]

_MADE_IN, _MADE_SET = "data/demo", "imagenet-like"
_IMAGES, _FEWEST = 1500, 64
_DECODING_S = 50.0  # of all epochs; limits the number of large photos
_DECODING_EPOCHS = 4
_PROBED = 8
_BATCH_SIZE, _RESIZE, _CROP = 64, 256, 224
_BUSY = 0.5
_ENDING_S = 20.0  # for SUPER's services to end before the next process is measured


def demo(named: str | None, images: int | None, console: Console) -> dict[str, Any]:
    """Measure both loaders; print the figures, write a page, return them for JSON.

    Args:
        named: a folder with a folder of images for each class; None: drawn ones, ``data/demo``.
        images: the number of images to read; None: 1,500, or fewer if decoding is slow.
        console: receives all output.

    Raises:
        SuperError: the images cannot be read, or a process failed; the message has its reason.
    """
    print_line, cores = partial(say, console), usable_cores()
    load, _, _ = os.getloadavg()
    if load > _BUSY * cores:
        print_line(
            f"this machine is busy (load {load:.1f} on {cores} cores): the figures will be of a busy machine"
        )
    directory = _directory(named, print_line)
    epochs: dict[str, list[Epoch]] = {PILLOW: [], SUPER: []}
    with tempfile.TemporaryDirectory(prefix="super-demo-", ignore_cleanup_errors=True) as scratch:
        key_list, count, total = _chosen(directory, images, cores, Path(scratch))
        read = f"{count:,} images" if count == total else f"{count:,} of {total:,} images"
        print_line(f"reading {read} of {directory}, resized to {_RESIZE} and cropped to {_CROP}")
        page = new_directory("runs", "demo") / PAGE_NAME
        workers = min(cores, -(-count // _BATCH_SIZE))
        task = Task(PILLOW, str(directory), key_list, 2, _BATCH_SIZE, workers, _RESIZE, _CROP)
        # Fresh processes have lost the cache, and keep the store.
        for number, loader in ((2, PILLOW), (2, SUPER), (1, PILLOW), (1, SUPER)):
            print_line(f"  {loader}: {'two epochs' if number > 1 else 'an epoch'} in a fresh process")
            epochs[loader] += _measured(replace(task, loader=loader, epochs=number), f"{scratch}/store")
    shown = Shown(read, count, task, epochs)
    write_whole(shown.page(), page)
    shown.print(console, page)
    figures = {loader: [asdict(epoch) for epoch in loader_epochs] for loader, loader_epochs in epochs.items()}
    return {"directory": str(directory), "page": str(page), **figures}


def _directory(named: str | None, tell: Callable[[str], None]) -> Path:
    """Return the user's folder, or that of drawn images, which are made once."""
    if named is not None:
        directory = Path(named).expanduser().absolute()
        if not directory.is_dir():
            raise ConfigError(f"{named} is no folder of this machine; the demo reads files alone")
        return directory
    return make_set(MADE_SETS[_MADE_SET], _MADE_IN, samples=_IMAGES, tell=tell) / "train"


def _chosen(directory: Path, asked: int | None, cores: int, scratch: Path) -> tuple[str | None, int, int]:
    """Choose evenly spaced images; return a key list (None: all), number and total.

    Each is read here, so that both loaders find it in the page cache.
    """
    samples = list_samples(Source(f"file://{directory}"), "torch")
    total = len(samples)
    if asked is None:
        make = ImageMaker(RecipeSpec(resize=_RESIZE, crop=_CROP), samples)
        probed = range(0, total, -(-total // _PROBED))
        began_s = time.perf_counter()
        for index in probed:
            try:
                make(samples.read(index), samples.keys[index], 0)
            except BadSampleError:  # both loaders skip it
                continue
        each_s = (time.perf_counter() - began_s) / len(probed)
        asked = min(_IMAGES, max(_FEWEST, int(_DECODING_S * cores / _DECODING_EPOCHS / each_s)))
    chosen = [number * total // asked for number in range(asked)] if asked < total else range(total)
    for index in chosen:
        samples.read(index)
    if len(chosen) == total:
        return None, total, total
    key_list = scratch / "images.jsonl"
    rows = [{"key": samples.keys[index], "label": samples.classes[samples.labels[index]]} for index in chosen]
    key_list.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(key_list), asked, total


def _measured(task: Task, store: str) -> list[Epoch]:
    """Run a task in a fresh process, and wait until its services have ended."""
    # The user's own coordinator, cache or store would be measured too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    command = [sys.executable, "-P", "-m", "superdl.experiments.demo.measuring", json.dumps(asdict(task))]
    process = subprocess.run(
        command, env=environment | {"SUPER_STORE": store}, capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise SuperError(f"{task.loader} failed: {process.stderr.strip()}")
    output = json.loads(process.stdout)
    services = []
    for pid in output["services"]:
        with suppress(psutil.NoSuchProcess):  # it has ended already
            services.append(psutil.Process(pid))
    psutil.wait_procs(services, timeout=_ENDING_S)
    return [Epoch(**epoch) for epoch in output["epochs"]]
