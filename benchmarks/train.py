"""``superdl bench train``: one core trains, and the decoding is on that core or on the others.

It decides which trainers run, on which cores, trains in a process of its own, and makes figures of what was
measured. The network and its loop are :mod:`benchmarks.trainer`'s.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.arm import checksum
from benchmarks.command import not_negative, positive
from benchmarks.contenders import CONTENDERS, PILLOW, SUPER, SUPER_LOADER
from benchmarks.image_sets import ImageSet, add_image_options, prepare_images
from benchmarks.loading import Contender, Loading, open_in_planned_order
from benchmarks.processes import (
    BenchmarkError,
    Cores,
    descendants_cpu_s,
    held_to,
    process_cpu_s,
    run_child,
)
from benchmarks.results import BenchmarkReport, Column, Started
from benchmarks.services import embedded_services
from benchmarks.trainer import SmallResNet, Trainer, decode_ms

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "Alone",
    "EpochResult",
    "TrainResult",
    "TrainRun",
    "TrainSpec",
    "add_arguments",
    "loss_difference",
    "measure",
    "rows_of",
    "train_on_cores",
]

_CLASSES = 10
_WARMING_STEPS = 2  # the first steps of a process choose and compile kernels
_LOSS_DIFFERENCE_MAX = 1e-3

_METHOD = (
    (
        "A trainer that is held to one core, with one torch thread, trains a small ResNet. "
        f"'{CONTENDERS[PILLOW].title}' decodes in workers on the same core. With SUPER, functions, cache and "
        "coordinator are held to the other cores, and the trainer with its loader to the one. All train the "
        "same network on the same batches in the same order: SUPER's plan; a checksum of all pixels and "
        "labels is compared, and so is the loss of every step."
    ),
    (
        "Step time is the wall clock of an epoch over its steps, the start of its iterator included. "
        "'waiting' is the share of it in which the loop has no batch; workers on the trainer's own core slow "
        "the computing down as well, which it does not show. 'cold': the first epoch, functions warm, cache "
        "empty. 'warm': the later ones, everything cached. Of Pillow epochs from the second one on count, "
        "whose workers run. Figures are medians over epochs and rounds; each cold epoch has fresh services."
    ),
    (
        "'gain' is the step time with Pillow over this row's. 'at most': the step time with Pillow over what "
        "the step cannot go below, the larger of two CPU times: computing alone on the trainer's core, and "
        "what functions and services spent, over the other cores. Where functions decode no faster than "
        "Pillow, one added core caps the cold gain at 2."
    ),
    (
        "Results of others with preprocessing split from training: steps 2.2 times faster (192 to 86 ms, CPU "
        "hosts added), and 2.9 times (2.55 to 0.88 s, a gRPC split on one host, batch 8192 of MNIST)."
    ),
)

COLD, WARM, LATER = "cold", "warm", "later"

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
    add_image_options(parser, photos=2048)
    parser.add_argument("--batch-size", type=positive, default=128, help="(128)")
    parser.add_argument("--workers", type=not_negative, default=2, help="of the DataLoaders (2)")
    parser.add_argument("--width", type=positive, default=8, help="channels of the network's first stage (8)")
    parser.add_argument("--epochs", type=positive, default=3, help="after the first one of each trainer (3)")
    parser.add_argument("--rounds", type=positive, default=3, help="how often each trainer runs (3)")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Train with each loader; ``say`` gets a line for each.

    Raises:
        SuperError: there is one core only, images or services cannot be had, or a trainer failed.

    """
    started = Started("train")
    cores = Cores.split(1)
    images = prepare_images(arguments.images, arguments, say)
    runs: list[TrainRun] = []
    for number in range(1, arguments.rounds + 1):
        for contender in (PILLOW, SUPER, SUPER_LOADER):
            say(f"round {number} of {arguments.rounds}: {CONTENDERS[contender].title}")
            result = _trained(contender, images, arguments, cores)
            _check(contender, result, images)
            runs.append(TrainRun(number, contender, result))
            _check_same_training(runs)
    alone = Alone.of(runs)
    settings = ("batch_size", "workers", "width", "epochs", "rounds")
    rows = rows_of(runs, alone, workers=arguments.workers, other_cores=len(cores.others))
    group = {"images": images.name, "batch_size": arguments.batch_size, "width": arguments.width}
    alone_line = (
        f"Alone, an image takes {alone.decode_ms_per_image:.2f} ms of CPU to decode and "
        f"{alone.compute_ms_per_image:.2f} ms to train on: decoding is {alone.decode_to_compute:.1f} times "
        f"computing. Losses of equal steps differ by {loss_difference(runs):.2g} at most."
    )
    return started.report(
        settings={
            "image_sets": images.described(),
            **{name: getattr(arguments, name) for name in settings},
            "trainer_cores": len(cores.trainer),
            "other_cores": len(cores.others),
            "decode_ms_per_image": alone.decode_ms_per_image,
            "compute_ms_per_image": alone.compute_ms_per_image,
            "decode_to_compute": alone.decode_to_compute,
            "loss_difference_max": loss_difference(runs),
        },
        method=(*_METHOD, alone_line),
        group_by=tuple(group),
        columns=_COLUMNS,
        rows=({**group, **row} for row in rows),
        rounds=(run.to_mapping() for run in runs),
    )


def _trained(contender: str, images: ImageSet, arguments: argparse.Namespace, cores: Cores) -> TrainResult:
    """Train with a contender, everything else on the other cores; each cold epoch has fresh services."""
    workers = CONTENDERS[contender].workers.used(arguments.workers)
    spec = TrainSpec(
        contender=contender,
        loading=images.loading(batch_size=arguments.batch_size, num_workers=workers),
        cores=cores.trainer,
        width=arguments.width,
        epochs=arguments.epochs + 1,
        alone=contender == PILLOW,
    )
    name = f"training with {contender}"
    with held_to(cores.others):
        if contender == PILLOW:
            return run_child(train_on_cores, spec, name=name)
        with embedded_services("train") as services:
            spec = replace(
                spec,
                loading=replace(spec.loading, coordinator=services.coordinator),
                cache_pid=services.cache_pid,
                coordinator_pid=services.coordinator_pid,
            )
            return run_child(train_on_cores, spec, name=name)


def _check(contender: str, result: TrainResult, images: ImageSet) -> None:
    """A figure that is not of what it says is worse than none."""
    for number, epoch in enumerate(result.epochs):
        if epoch.images != images.images:
            raise BenchmarkError(
                f"{contender}: {epoch.images} images came in epoch {number}, not {images.images}"
            )
        if number and epoch.produced:
            raise BenchmarkError(f"{contender}: functions decoded {epoch.produced} samples in a warm epoch")


def _check_same_training(runs: Sequence[TrainRun]) -> None:
    if len({run.result.checksum for run in runs}) > 1:
        raise BenchmarkError(f"{runs[-1].contender} gave other pixels or labels than {runs[0].contender}")
    difference = loss_difference(runs)
    if not difference <= _LOSS_DIFFERENCE_MAX:
        raise BenchmarkError(
            f"{runs[-1].contender} trained otherwise than {runs[0].contender}: losses of equal steps differ "
            f"by {difference:.3g}"
        )


def loss_difference(runs: Sequence[TrainRun]) -> float:
    """By how much the losses of equal steps differ between any run and the first, at most."""
    curves = [[loss for epoch in run.result.epochs for loss in epoch.losses] for run in runs]
    return max(abs(one - other) for curve in curves for one, other in zip(curve, curves[0], strict=True))


# ------------------------------------------------------------------------------------------- training


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """What one trainer does.

    ``cores`` are the processors that it and its workers may use; ``width`` is the network's; ``alone`` asks
    for the cost of decoding and of computing, each by itself. Process ids are 0 where no services run.
    """

    contender: str
    loading: Loading
    cores: list[int]
    width: int
    epochs: int
    alone: bool
    cache_pid: int = 0
    coordinator_pid: int = 0


@dataclass(frozen=True, slots=True)
class EpochResult:
    """One epoch: its wall clock, of it the time without a batch, and the CPU beside; in seconds."""

    steps: int
    images: int
    wall_s: float
    wait_s: float
    functions_cpu_s: float
    services_cpu_s: float
    produced: int
    losses: list[float]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """All epochs; the checksum of one epoch more; milliseconds per image of decoding and computing alone."""

    epochs: list[EpochResult]
    checksum: int
    decode_ms_per_image: float | None
    compute_ms_per_image: float | None


def train_on_cores(spec: TrainSpec) -> TrainResult:
    """Train a small network, with one torch thread."""
    warming, trainer = (
        Trainer(
            lambda: SmallResNet(_CLASSES, spec.width),
            torch.device("cpu"),
            cores=spec.cores,
            threads=1,
            rate=0.05,
        )
        for _ in range(2)
    )
    for _ in range(_WARMING_STEPS):
        warming.step(warming.blank(spec.loading))
    contender = (
        open_in_planned_order(spec.loading)
        if spec.contender == PILLOW
        else CONTENDERS[spec.contender].open(spec.loading)
    )
    try:
        epochs = [_epoch(contender, trainer, spec) for _ in range(spec.epochs)]
        seen = sum(checksum(images, labels) for images, labels in contender)
    finally:
        contender.close()
    if not spec.alone:
        return TrainResult(epochs, seen, None, None)
    return TrainResult(epochs, seen, decode_ms(spec.loading), warming.compute_ms(spec.loading))


def _epoch(contender: Contender, trainer: Trainer, spec: TrainSpec) -> EpochResult:
    produced, functions_s, services_s = contender.produced(), *_cpu_beside(spec)
    trainer.start_counting()
    wall_s = trainer.epoch(contender)
    functions_end_s, services_end_s = _cpu_beside(spec)
    return EpochResult(
        steps=len(trainer.losses),
        images=trainer.images,
        wall_s=wall_s,
        wait_s=wall_s - trainer.busy_s(),
        functions_cpu_s=functions_end_s - functions_s,
        services_cpu_s=services_end_s - services_s,
        produced=contender.produced() - produced,
        losses=trainer.losses,
    )


def _cpu_beside(spec: TrainSpec) -> tuple[float, float]:
    """CPU seconds until now of the functions, and of cache and coordinator."""
    if not spec.coordinator_pid:
        return 0.0, 0.0
    services_s = process_cpu_s(spec.coordinator_pid) + process_cpu_s(spec.cache_pid)
    return descendants_cpu_s(spec.coordinator_pid), services_s


# -------------------------------------------------------------------------------------------- figures


@dataclass(frozen=True, slots=True)
class TrainRun:
    """One trainer, done."""

    round: int
    contender: str
    result: TrainResult

    def to_mapping(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"round": self.round, "contender": self.contender, **asdict(self.result)}


@dataclass(frozen=True, slots=True)
class Alone:
    """What an image costs in the trainer's own process: to decode with Pillow, and to train on; CPU ms."""

    decode_ms_per_image: float
    compute_ms_per_image: float

    @classmethod
    def of(cls, runs: Sequence[TrainRun]) -> Alone:
        """Medians over the trainers that measured it."""
        decode = [run.result.decode_ms_per_image for run in runs]
        compute = [run.result.compute_ms_per_image for run in runs]
        return cls(
            median(value for value in decode if value is not None),
            median(value for value in compute if value is not None),
        )

    @property
    def decode_to_compute(self) -> float:
        """The ratio that decides what splitting can gain."""
        return self.decode_ms_per_image / self.compute_ms_per_image

    def gain_bound(self, plain_ms_per_image: float, beside_ms_per_image: float) -> float:
        """How many times faster than ``plain_ms_per_image`` a step can be: neither the trainer's computing
        nor what functions and services do for an image can take less.
        """
        return plain_ms_per_image / max(self.compute_ms_per_image, beside_ms_per_image)


def rows_of(
    runs: Sequence[TrainRun], alone: Alone, *, workers: int, other_cores: int
) -> Iterator[dict[str, Any]]:
    """A row for Pillow's later epochs, and two for each other loader."""
    plain = _figures(_epochs(runs, PILLOW, LATER))
    yield {**_named(PILLOW, LATER, workers), **plain, "gain": 1.0, "gain_bound": None}
    for contender in dict.fromkeys(run.contender for run in runs if run.contender != PILLOW):
        for part in (COLD, WARM):
            figures = _figures(_epochs(runs, contender, part))
            beside_ms = figures["functions_cpu_ms_per_image"] + figures["services_cpu_ms_per_image"]
            yield {
                **_named(contender, part, workers),
                **figures,
                "gain": plain["step_ms"] / figures["step_ms"],
                "gain_bound": alone.gain_bound(1e3 / plain["images_per_s"], beside_ms / other_cores),
            }


def _named(contender: str, part: str, workers: int) -> dict[str, Any]:
    form = CONTENDERS[contender]
    used = form.workers.used(workers)
    return {"contender": contender, "loader": form.title, "workers": used, "epochs": part}


def _epochs(runs: Sequence[TrainRun], contender: str, part: str) -> list[EpochResult]:
    where = slice(0, 1) if part == COLD else slice(1, None)
    return [epoch for run in runs if run.contender == contender for epoch in run.result.epochs[where]]


def _figures(epochs: Sequence[EpochResult]) -> dict[str, float]:
    return {
        "step_ms": 1e3 * median(one.wall_s / one.steps for one in epochs),
        "wait_percent": 100 * median(one.wait_s / one.wall_s for one in epochs),
        "images_per_s": median(one.images / one.wall_s for one in epochs),
        "functions_cpu_ms_per_image": 1e3 * median(one.functions_cpu_s / one.images for one in epochs),
        "services_cpu_ms_per_image": 1e3 * median(one.services_cpu_s / one.images for one in epochs),
    }
