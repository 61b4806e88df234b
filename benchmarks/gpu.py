"""``superdl bench gpu``: whether an accelerator waits for data, and from how many images per second on it no
longer does.

It decides which loaders and models run, on which cores, trains in a process of its own, and makes figures of
what was measured. The network and its loop are :mod:`benchmarks.trainer`'s.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.command import positive
from benchmarks.contenders import CONTENDERS, PILLOW, SUPER, SUPER_LOADER
from benchmarks.image_sets import ImageSet, add_image_options, prepare_images
from benchmarks.loading import Contender, Loading
from benchmarks.processes import BenchmarkError, Cores, children_cpu_s, held_to, process_cpu_s, run_child
from benchmarks.results import BenchmarkReport, Column, Started, describe_machine
from benchmarks.services import embedded_services
from benchmarks.trainer import Trainer
from superdl.experiments.manifest import describe_environment
from superdl.experiments.models import build_model

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "SYNTHETIC",
    "GpuResult",
    "GpuRun",
    "GpuSpec",
    "add_arguments",
    "measure",
    "rows_of",
    "train_on_device",
]

SYNTHETIC = "synthetic"
"""One batch that lies on the device, again and again: what the device itself can do."""

_MODELS = ("resnet18", "resnet50")
_TINY = "small_cnn"  # for seeing that this works

_CLASSES = 1000
_WARMING_STEPS = 10  # kernels are chosen, memory is taken
_COPIES = 20

_METHOD = (
    (
        "torchvision's ResNet trains in bf16 and channels_last. The trainer and its loader "
        "are held to some of the cores (--trainer-cores), functions, cache and coordinator to the others. "
        f"'{SYNTHETIC}' is one batch on the device, again and again: the images/s at which the model does "
        "not wait. A loader keeps up where '% of it' is near 100."
    ),
    (
        "Time is taken on the device. 'busy' is the share of the wall clock in which a step is under way; "
        "'waiting' is the gap between steps, copies that are not overlapped included; 'copy' is a batch's "
        "way from page-locked memory to the device, alone: where waiting is far below it, copies overlap. "
        "'supply' is the loader alone, to the device. Figures are of the epochs after the first one "
        "(--epochs), with everything cached; 'first epoch' begins with an empty cache and warm kernels."
    ),
)

_COLUMNS = (
    Column("loader", "loader"),
    Column("num_workers", "work-\ners", "d"),
    Column("images_per_s", "images\n/s", ",.0f"),
    Column("percent_of_synthetic", "\n% of it", ".1f"),
    Column("busy_percent", "\n% busy", ".1f"),
    Column("waiting_ms_per_step", "waiting\nms/step", ".2f"),
    Column("copy_ms", "copy\nms", ".2f"),
    Column("supply_images_per_s", "supply\nimages/s", ",.0f"),
    Column("first_epoch_images_per_s", "first epoch\nimages/s", ",.0f"),
    Column("trainer_cpu_ms_per_image", "CPU ms\n/image", ".3f"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    models = (*_MODELS, _TINY)
    parser.add_argument("--models", nargs="+", choices=models, default=list(_MODELS), help="models (ResNets)")
    parser.add_argument("--device", default="cuda", help="torch device (cuda); cpu only to see that it works")
    add_image_options(parser, photos=4096)
    parser.add_argument("--batch-size", type=positive, default=256, help="(256)")
    parser.add_argument("--workers", type=positive, default=4, help="of the DataLoaders (4)")
    parser.add_argument("--trainer-cores", type=positive, default=4, help="cores of the trainer (4)")
    parser.add_argument("--epochs", type=positive, default=5, help="measured after the first (5)")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Train with each loader; ``say`` gets a line for each.

    Raises:
        BenchmarkError: there is no such device, or too few cores.
        SuperError: images or services cannot be had, or a trainer failed.

    """
    device = _device(arguments.device)
    cores = Cores.split(arguments.trainer_cores)
    environment = {**describe_machine(), **describe_environment(device)}
    started = Started("gpu", environment)
    images = prepare_images(arguments.images, arguments, say)
    runs: list[GpuRun] = []
    for model in arguments.models:
        for contender in (SYNTHETIC, PILLOW, SUPER, SUPER_LOADER):
            say(f"{model}: {contender}")
            spec = _spec(contender, model, images, arguments, cores)
            result = _trained(spec, cores)
            _check(spec, result)
            runs.append(GpuRun(contender, model, spec.loading.num_workers, spec.epochs, result))
    group = {"device": environment["device_name"] or device.type, "batch_size": arguments.batch_size}
    return started.report(
        settings={
            "image_sets": images.described(),
            **{name: getattr(arguments, name) for name in ("models", "batch_size", "workers", "epochs")},
            "trainer_cores": len(cores.trainer),
            "other_cores": len(cores.others),
        },
        method=_METHOD,
        group_by=("device", "batch_size", "model"),
        columns=_COLUMNS,
        rows=({**group, **row} for row in rows_of(runs)),
        rounds=(asdict(run) for run in runs),
    )


def _spec(
    contender: str, model: str, images: ImageSet, arguments: argparse.Namespace, cores: Cores
) -> GpuSpec:
    form = CONTENDERS.get(contender)
    loading = images.loading(
        batch_size=arguments.batch_size,
        num_workers=0 if form is None else form.workers.used(arguments.workers),
        device=arguments.device,
    )
    return GpuSpec(contender, loading, model, cores.trainer, arguments.epochs, images.images)


def _trained(spec: GpuSpec, cores: Cores) -> GpuResult:
    name = f"{spec.contender}, {spec.model}"
    with held_to(cores.others):
        if spec.contender not in (SUPER, SUPER_LOADER):
            return run_child(train_on_device, spec, name=name)
        with embedded_services("gpu") as services:
            loading = replace(spec.loading, coordinator=services.coordinator)
            return run_child(train_on_device, replace(spec, loading=loading), name=name)


def _check(spec: GpuSpec, result: GpuResult) -> None:
    """A figure that is not of what it says is worse than none."""
    if spec.contender != SYNTHETIC and result.images != spec.epochs * spec.images:
        raise BenchmarkError(
            f"{spec.contender}: {result.images} images came instead of {spec.epochs} times {spec.images}"
        )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BenchmarkError(f"--device is a torch device such as cuda; not {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError(
            "there is no CUDA device here, or this torch was built without CUDA: run this benchmark on a "
            "machine with an NVIDIA GPU, or with --device cpu --models small_cnn to see that it works"
        )
    if device.type not in ("cuda", "cpu"):
        raise BenchmarkError(f"--device is cuda, or cpu to see that it works; not {name!r}")
    return device


# ------------------------------------------------------------------------------------------- training


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Which loader and model, and how long. ``images`` are those of an epoch."""

    contender: str
    loading: Loading
    model: str
    cores: list[int]
    epochs: int
    images: int


@dataclass(frozen=True, slots=True)
class GpuResult:
    """What the epochs after the first one gave.

    ``busy_s`` is the time in which the device had a step under way, ``waiting_s`` the gaps between steps.
    ``supply_s`` is what one epoch takes without training, ``first_epoch_s`` the first one with it.
    ``copy_ms`` is one batch's way to the device, alone.
    """

    images: int
    steps: int
    wall_s: float
    busy_s: float
    waiting_s: float
    first_epoch_s: float
    supply_s: float
    copy_ms: float
    trainer_cpu_s: float


def train_on_device(spec: GpuSpec) -> GpuResult:
    """Train a ResNet in bf16. On a CPU the same code runs, to see that it works."""
    loading = spec.loading
    trainer = Trainer(
        lambda: build_model(spec.model, _CLASSES, torch.device(loading.device)),
        torch.device(loading.device),
        cores=spec.cores,
        threads=len(spec.cores),
        rate=0.01,
        momentum=0.9,
        precision=torch.bfloat16,
    )
    blank = trainer.blank(loading)
    for _ in range(_WARMING_STEPS):
        trainer.step(blank)
    if spec.contender == SYNTHETIC:
        contender = Contender([blank] * -(-spec.images // loading.batch_size))
    else:
        contender = CONTENDERS[spec.contender].open(loading)
    try:
        first_epoch_s = trainer.epoch(contender)
        trainer.start_counting()
        cpu_s = process_cpu_s(os.getpid()) + children_cpu_s()
        wall_s = sum(trainer.epoch(contender) for _ in range(spec.epochs))
        cpu_s = process_cpu_s(os.getpid()) + children_cpu_s() - cpu_s
        supply_s = trainer.epoch(contender, steps=False)
    finally:
        contender.close()
    return GpuResult(
        images=trainer.images,
        steps=len(trainer.steps) - 1,
        wall_s=wall_s,
        busy_s=trainer.busy_s(),
        waiting_s=trainer.waiting_s(),
        first_epoch_s=first_epoch_s,
        supply_s=supply_s,
        copy_ms=_copy_ms(loading, trainer),
        trainer_cpu_s=cpu_s,
    )


def _copy_ms(loading: Loading, trainer: Trainer) -> float:
    """One batch from page-locked memory to the device, with nothing else under way."""
    batch = torch.zeros((loading.batch_size, 3, loading.crop, loading.crop), dtype=torch.uint8)
    if trainer.device.type == "cuda":
        batch = batch.pin_memory()
    trainer.synchronize()
    began = trainer.mark()
    for _ in range(_COPIES):
        batch.to(trainer.device, non_blocking=True)
    ended = trainer.mark()
    trainer.synchronize()
    return float(began.elapsed_time(ended)) / _COPIES


# -------------------------------------------------------------------------------------------- figures


@dataclass(frozen=True, slots=True)
class GpuRun:
    """One trainer, done."""

    contender: str
    model: str
    num_workers: int
    epochs: int
    result: GpuResult


def rows_of(runs: Sequence[GpuRun]) -> Iterator[dict[str, Any]]:
    """A row for each run; images/s in per cent of what the same model does with synthetic images."""
    rates = {(run.contender, run.model): run.result.images / run.result.wall_s for run in runs}
    for run in runs:
        one = run.result
        epoch_images = one.images / run.epochs
        yield {
            "model": run.model,
            "contender": run.contender,
            "loader": run.contender if run.contender == SYNTHETIC else CONTENDERS[run.contender].title,
            "num_workers": run.num_workers,
            "images_per_s": rates[run.contender, run.model],
            "percent_of_synthetic": 100 * rates[run.contender, run.model] / rates[SYNTHETIC, run.model],
            "busy_percent": 100 * one.busy_s / one.wall_s,
            "waiting_ms_per_step": 1e3 * one.waiting_s / one.steps,
            "copy_ms": one.copy_ms,
            "supply_images_per_s": None if run.contender == SYNTHETIC else epoch_images / one.supply_s,
            "first_epoch_images_per_s": epoch_images / one.first_epoch_s,
            "trainer_cpu_ms_per_image": 1e3 * one.trainer_cpu_s / one.images,
        }
