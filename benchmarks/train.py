"""Training on one core, with decoding on the same core or on the others: ``superdl bench train``."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.harness.arm import ArmSpec, Lap, run_checked
from benchmarks.harness.image_sets import IMAGE_SETS, add_data_option, add_option, prepare_images
from benchmarks.harness.processes import held_to, loader_services, usable_cores
from benchmarks.harness.results import BenchmarkReport, Column, Run, check_same_images
from benchmarks.loaders.contenders import CONTENDERS, PILLOW, SUPER, SUPER_LOADER
from superdl.experiments.models import NormalisedNetwork, declare_operators

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.harness.image_sets import Loading

_CLASSES = 100  # the most that any image set has
_WARMING_STEPS = 2  # the first steps of a process choose kernels

_METHOD = (
    (
        "A trainer that is pinned to one core trains a small ResNet. "
        f"'{CONTENDERS[PILLOW].title}' decodes in workers on the same core. SUPER's functions, cache and "
        "coordinator use the other cores. All train on the same images, which is checked by a checksum of "
        "pixels and labels."
    ),
    (
        "'waiting' is the share of an epoch in which no step is running. 'first' is the first epoch, with "
        "warm functions and an empty cache. Figures are medians over epochs and rounds. Each run of SUPER "
        "has fresh services."
    ),
    (
        "No loader can make a step shorter than the main process's CPU, nor than the CPU of functions, cache "
        "and coordinator divided by the number of other cores. With Pillow, the CPU of workers is decoding, "
        "and that of the main process is computing."
    ),
)

_COLUMNS = (
    Column("loader", "loader"),
    Column("epochs", "epochs"),
    Column("step_ms", "step\nms", ".1f"),
    Column("wait_percent", "%\nwaiting", ".1f"),
    Column("images_per_s", "images\n/s", ",.0f"),
    Column("main_cpu_ms", "main\nCPU ms/image", ".3f"),
    Column("workers_cpu_ms", "workers'", ".3f"),
    Column("functions_cpu_ms", "functions'", ".3f"),
    Column("cache_cpu_ms", "cache's", ".3f"),
    Column("coordinator_cpu_ms", "coordinator's", ".3f"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_option(parser, "--images", "photos", "image set", choices=IMAGE_SETS)
    add_data_option(parser, photos=2048)
    add_option(parser, "--batch-size", 128, "images per batch")
    add_option(parser, "--workers", 2, "workers of each DataLoader")
    add_option(parser, "--width", 8, "channels in the network's first stage")
    add_option(parser, "--epochs", 3, "epochs after the first one of each trainer")
    add_option(parser, "--rounds", 3, "number of runs of each trainer")


def measure(arguments: argparse.Namespace, log: Callable[[str], None]) -> BenchmarkReport:
    """Train with each loader, calling ``log`` with a line for each."""
    trainer_core, *function_cores = usable_cores(
        2, "this benchmark pins the trainer to one core and functions to the others"
    )
    images = prepare_images(arguments.images, arguments, log)
    spec = TrainerSpec(replace(images, batch_size=arguments.batch_size), arguments.width, trainer_core)
    runs: list[Run] = []
    with held_to(function_cores):  # processes started here inherit these cores, except the trainer
        for number in range(1, arguments.rounds + 1):
            for contender in (PILLOW, SUPER, SUPER_LOADER):
                log(f"round {number} of {arguments.rounds}: {CONTENDERS[contender].title}")
                runs += _runs(images.name, contender, _trained(contender, spec, arguments))
                check_same_images(runs)
    return BenchmarkReport(
        method=_METHOD,
        group_by=("images",),
        columns=_COLUMNS,
        runs=runs,
    )


def _trained(contender: str, spec: TrainerSpec, arguments: argparse.Namespace) -> list[Lap]:
    form = CONTENDERS[contender]
    workers = form.workers_of(arguments.workers)
    with loader_services() as services:  # idle if Pillow decodes
        arm = ArmSpec(
            open=form.open,
            loading=replace(spec.loading, num_workers=workers, coordinator=services.coordinator),
            laps=[1] * (arguments.epochs + 1),
            pids=services.pids,
            trainer=partial(warmed, spec),
        )
        return run_checked(arm, f"training with {contender}")


def _runs(images: str, contender: str, laps: Sequence[Lap]) -> Iterator[Run]:
    for number, lap in enumerate(laps):
        conditions: Mapping[str, Any] = {
            "images": images,
            "loader": CONTENDERS[contender].title,
            "epochs": "later" if number else "first",
        }
        steps = {"step_ms": 1e3 * lap.wall_s / lap.steps, "wait_percent": 100 * lap.wait_s / lap.wall_s}
        yield Run(conditions, {**lap.figures(), **steps})


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """A trainer's setup: its images, the network's width, and the core that it and its workers use."""

    loading: Loading
    width: int
    core: int


class Trainer:
    """A small ResNet and its optimiser, running in a single torch thread."""

    def __init__(self, spec: TrainerSpec) -> None:
        # Workers that it starts inherit the core.
        os.sched_setaffinity(0, {spec.core})
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._model = small_resnet(_CLASSES, spec.width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=0.05)
        self._steps, self._busy_s = 0, 0.0

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Train on one batch."""
        began_s = time.perf_counter()
        images, labels = batch
        loss = cross_entropy(self._model(images), labels)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self._optimiser.step()
        self._steps += 1
        self._busy_s += time.perf_counter() - began_s

    def figures(self, wall_s: float) -> dict[str, Any]:
        """Return and reset the step count and the time spent outside steps (``wall_s`` minus busy time)."""
        figures = {"steps": self._steps, "wait_s": wall_s - self._busy_s}
        self._steps, self._busy_s = 0, 0.0
        return figures


def warmed(spec: TrainerSpec) -> Trainer:
    """Warm up this process with one trainer, and return a fresh one."""
    first = Trainer(spec)
    for _ in range(_WARMING_STEPS):
        first.step(_random_batch(spec.loading))
    return Trainer(spec)


def _random_batch(loading: Loading) -> tuple[Tensor, Tensor]:
    size, side = loading.batch_size, loading.crop
    images = torch.randint(0, 256, (size, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    return images, torch.randint(0, _CLASSES, (size,))


def small_resnet(classes: int, width: int) -> nn.Module:
    """Return a ResNet for uint8 images with one block per stage. It takes about 1 ms per image."""
    declare_operators()
    from torchvision.models.resnet import BasicBlock

    # The width is the number of channels in the first stage.
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, kernel_size=7, stride=4, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        BasicBlock(width, width),
    ]
    for before, after in pairwise(width * 2**stage for stage in range(4)):
        halved = nn.Conv2d(before, after, kernel_size=1, stride=2, bias=False)
        layers.append(BasicBlock(before, after, 2, nn.Sequential(halved, nn.BatchNorm2d(after))))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes)]
    return NormalisedNetwork(nn.Sequential(*layers), None)
