"""Training on one core, with decoding on the same core or on the others: ``superdl bench train``."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.harness.arm import ArmSpec, Lap, run_checked
from benchmarks.harness.image_sets import (
    IMAGE_SETS,
    add_data_option,
    add_option,
    described,
    not_negative,
    prepare_images,
)
from benchmarks.harness.processes import (
    BenchmarkError,
    held_to,
    loader_services,
    run_child,
    seconds_each,
    usable_cores,
)
from benchmarks.harness.results import BenchmarkReport, Column, Run, by_conditions
from benchmarks.loaders.contenders import CONTENDERS, PILLOW, SUPER, SUPER_LOADER
from benchmarks.loaders.opening import Pairs, open_in_planned_order
from superdl.experiments.models import NormalisedNetwork, declare_operators

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.harness.image_sets import Loading

_LOSS_DIFFERENCE_MAX = 1e-3
_CLASSES = 100  # the maximum of the image sets
_WARMING_STEPS = 2  # the first steps of a process choose kernels
_ALONE_IMAGES = 64

_METHOD = (
    (
        "A trainer that is pinned to one core trains a small ResNet. "
        f"'{CONTENDERS[PILLOW].title}' decodes in workers on the same core. SUPER's functions, cache and "
        "coordinator use the other cores. All train on the same batches in SUPER's order, which is checked "
        "by a checksum of pixels and labels and by the loss of every step."
    ),
    (
        "'waiting' is the share of an epoch in which no step is running. 'cold' is the first epoch, with "
        "warm functions and an empty cache; 'warm' covers the later ones. For Pillow, only the later epochs "
        "count. Figures are medians over epochs and rounds. Each cold epoch has fresh services."
    ),
    (
        "'gain' is the step time with Pillow divided by this row's. 'at most' divides it by the minimum step "
        "time instead, which is the larger of computing alone and the CPU of functions and services divided "
        "by the number of other cores."
    ),
)

_COLUMNS = (
    Column("loader", "loader"),
    Column("workers", "work-\ners", "d"),
    Column("epochs", "epochs"),
    Column("step_ms", "step\nms", ".1f"),
    Column("wait_percent", "%\nwaiting", ".1f"),
    Column("images_per_s", "images\n/s", ",.0f"),
    Column("gain", "\ngain", ".2f"),
    Column("gain_bound", "at\nmost", ".2f"),
    Column("functions_cpu_ms_per_image", "functions'\nCPU ms/image", ".3f"),
    Column("services_cpu_ms_per_image", "services'\nCPU ms/image", ".3f"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_option(parser, "--images", "photos", "image set", choices=IMAGE_SETS)
    add_data_option(parser, photos=2048)
    add_option(parser, "--batch-size", 128, "images per batch")
    add_option(parser, "--workers", 2, "workers of each DataLoader", type=not_negative)
    add_option(parser, "--width", 8, "channels in the network's first stage")
    add_option(parser, "--epochs", 3, "epochs after the first one of each trainer")
    add_option(parser, "--rounds", 3, "number of runs of each trainer")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Train with each loader. ``say`` receives a line for each."""
    trainer_core, *function_cores = usable_cores(
        2, "this benchmark pins the trainer to one core and functions to the others"
    )
    images = prepare_images(arguments.images, arguments, say)
    spec = TrainerSpec(replace(images, batch_size=arguments.batch_size), arguments.width, trainer_core)
    with held_to(function_cores):  # processes started here inherit these cores, except the trainer
        say("measuring decoding and computing alone")
        alone = run_child(costs_alone, spec, name="decoding and computing alone")
        runs: list[Run[Lap]] = []
        for number in range(1, arguments.rounds + 1):
            for contender in (PILLOW, SUPER, SUPER_LOADER):
                say(f"round {number} of {arguments.rounds}: {CONTENDERS[contender].title}")
                laps = _trained(contender, spec, arguments)
                for epoch, lap in enumerate(laps):
                    runs.append(Run({"contender": contender, "epoch": epoch}, number, lap))
                _check_same_training(runs)
    rows = rows_of(runs, alone, workers=arguments.workers, other_cores=len(function_cores))
    group = {"images": images.name, "batch_size": arguments.batch_size}
    alone_line = (
        f"On its own, decoding takes {alone.decode_ms_per_image:.2f} ms of CPU per image and training "
        f"{alone.compute_ms_per_image:.2f} ms: decoding takes {alone.decode_to_compute:.1f} times as long as "
        f"computing, which reaches {1e3 / alone.compute_ms_per_image:,.0f} images/s. Losses of the same step "
        f"differ by at most {loss_difference(runs):.2g}."
    )
    return BenchmarkReport(
        settings={
            "image_sets": described([images]),
            "other_cores": len(function_cores),
            **asdict(alone),
            "decode_to_compute": alone.decode_to_compute,
            "loss_difference_max": loss_difference(runs),
        },
        method=(*_METHOD, alone_line),
        group_by=tuple(group),
        columns=_COLUMNS,
        rows=({**group, **row} for row in rows),
        rounds=(run.to_mapping() for run in runs),
    )


def _trained(contender: str, spec: TrainerSpec, arguments: argparse.Namespace) -> list[Lap]:
    form = CONTENDERS[contender]
    loading = replace(spec.loading, num_workers=form.workers_of(arguments.workers))
    arm = ArmSpec(
        open=open_in_planned_order if contender == PILLOW else form.open,
        loading=loading,
        laps=[1] * (arguments.epochs + 1),
        checked=True,
        trainer=partial(warmed, spec),
    )
    name = f"training with {contender}"
    if contender == PILLOW:
        return run_checked(arm, name)
    with loader_services() as services:
        loading = replace(loading, coordinator=services.coordinator)
        return run_checked(replace(arm, loading=loading, pids=services.pids), name)


def _check_same_training(runs: Sequence[Run[Lap]]) -> None:
    first, last = (run.conditions["contender"] for run in (runs[0], runs[-1]))
    if len({run.result.checksum for run in runs}) > 1:
        raise BenchmarkError(f"{last} delivered different pixels or labels from {first}")
    difference = loss_difference(runs)
    if not difference <= _LOSS_DIFFERENCE_MAX:
        raise BenchmarkError(
            f"{last} trained differently from {first}: losses of the same step differ by {difference:.3g}"
        )


def loss_difference(runs: Sequence[Run[Lap]]) -> float:
    """Return the largest difference between any run's losses and those of the first run."""
    expected: dict[int, Sequence[float]] = {}
    differences = [0.0]
    for run in runs:
        losses = expected.setdefault(run.conditions["epoch"], run.result.losses)
        differences += [abs(loss - other) for loss, other in zip(run.result.losses, losses, strict=True)]
    return max(differences)


# ---------------------------------------------------------------------------------------- the trainer


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """The setup of a trainer: the processor that it and its workers use, and the network's width."""

    loading: Loading
    width: int
    core: int


class Trainer:
    """A small ResNet with its optimiser, in one torch thread. It keeps every loss."""

    def __init__(self, spec: TrainerSpec) -> None:
        # Workers that it starts inherit the core.
        os.sched_setaffinity(0, {spec.core})
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._model = small_resnet(_CLASSES, spec.width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=0.05)
        self._busy_s = 0.0
        self._losses: list[float] = []

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Train on one batch."""
        began_s = time.perf_counter()
        images, labels = batch
        loss = cross_entropy(self._model(images), labels)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self._optimiser.step()
        self._losses.append(loss.item())
        self._busy_s += time.perf_counter() - began_s

    def figures(self, wall_s: float) -> dict[str, Any]:
        """Return the steps since the last call, their losses, and the part of ``wall_s`` outside them."""
        losses, busy_s = self._losses, self._busy_s
        self._losses, self._busy_s = [], 0.0
        return {"steps": len(losses), "wait_s": wall_s - busy_s, "losses": losses}


def warmed(spec: TrainerSpec) -> Trainer:
    """Return a fresh trainer, after another one has warmed up this process."""
    first = Trainer(spec)
    for _ in range(_WARMING_STEPS):
        first.step(_random_batch(spec.loading))
    return Trainer(spec)


def _random_batch(loading: Loading) -> tuple[Tensor, Tensor]:
    size, side = loading.batch_size, loading.crop
    images = torch.randint(0, 256, (size, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    return images, torch.randint(0, _CLASSES, (size,))


@dataclass(frozen=True, slots=True)
class Alone:
    """The trainer's CPU time in ms per image, for decoding with Pillow and for training."""

    decode_ms_per_image: float
    compute_ms_per_image: float

    @property
    def decode_to_compute(self) -> float:
        """Return the ratio that limits the gain from splitting."""
        return self.decode_ms_per_image / self.compute_ms_per_image

    def gain_bound(self, plain_ms_per_image: float, beside_ms_per_image: float) -> float:
        """Return the maximum speed-up of a step over ``plain_ms_per_image``."""
        # Neither computing nor the work of functions and services can take less.
        return plain_ms_per_image / max(self.compute_ms_per_image, beside_ms_per_image)


def costs_alone(spec: TrainerSpec) -> Alone:
    """Measure both in this process, which must be fresh, with nothing else running."""
    trainer, pairs = warmed(spec), Pairs(spec.loading)
    indices = range(min(len(pairs), _ALONE_IMAGES))
    decode_s = seconds_each(lambda: [pairs[index] for index in indices], time.process_time)
    batch = _random_batch(spec.loading)
    compute_s = seconds_each(lambda: trainer.step(batch), time.process_time)
    return Alone(1e3 * decode_s / len(indices), 1e3 * compute_s / spec.loading.batch_size)


def small_resnet(classes: int, width: int) -> nn.Module:
    """Return a ResNet with one block per stage, for uint8 images, which takes about 1 ms per image."""
    declare_operators()
    from torchvision.models.resnet import BasicBlock

    # The width is the number of channels of the first stage.
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


# -------------------------------------------------------------------------------------------- figures


def rows_of(
    runs: Sequence[Run[Lap]], alone: Alone, *, workers: int, other_cores: int
) -> Iterator[dict[str, Any]]:
    """Yield one row for Pillow's later epochs, and two for each other loader."""
    laps: dict[str, tuple[list[Lap], list[Lap]]] = {}
    for conditions, part_laps in by_conditions(runs):
        first, later = laps.setdefault(conditions["contender"], ([], []))
        (later if conditions["epoch"] else first).extend(part_laps)
    _, plain_laps = laps.pop(PILLOW)
    plain = _figures(plain_laps)
    yield {**_named(PILLOW, "later", workers), **plain, "gain": 1.0, "gain_bound": None}
    for contender, both_laps in laps.items():
        for store_state, part_laps in zip(("cold", "warm"), both_laps, strict=True):
            figures = _figures(part_laps)
            beside_ms = figures["functions_cpu_ms_per_image"] + figures["services_cpu_ms_per_image"]
            yield {
                **_named(contender, store_state, workers),
                **figures,
                "gain": plain["step_ms"] / figures["step_ms"],
                "gain_bound": alone.gain_bound(1e3 / plain["images_per_s"], beside_ms / other_cores),
            }


def _named(contender: str, part: str, workers: int) -> dict[str, Any]:
    form = CONTENDERS[contender]
    used = form.workers_of(workers)
    return {"contender": contender, "loader": form.title, "workers": used, "epochs": part}


def _figures(laps: Sequence[Lap]) -> dict[str, float]:
    services_ms = (1e3 * (lap.coordinator_cpu_s + lap.cache_cpu_s) / lap.images for lap in laps)
    return {
        "step_ms": 1e3 * median(lap.wall_s / lap.steps for lap in laps),
        "wait_percent": 100 * median(lap.wait_s / lap.wall_s for lap in laps),
        "images_per_s": median(lap.images / lap.wall_s for lap in laps),
        "functions_cpu_ms_per_image": 1e3 * median(lap.functions_cpu_s / lap.images for lap in laps),
        "services_cpu_ms_per_image": median(services_ms),
    }
