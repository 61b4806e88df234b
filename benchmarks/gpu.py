"""``superdl bench gpu``: whether an accelerator waits for data, and from how many images per second on it no
longer does.

It decides which loaders and models run, on which cores, and makes figures of what they measured. A trainer
itself is :mod:`benchmarks.gpu_trainer`'s.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.contenders import CONTENDERS, PILLOW, SUPER, SUPER_LOADER
from benchmarks.cores import Cores, held_to
from benchmarks.errors import BenchmarkError
from benchmarks.gpu_trainer import SYNTHETIC, TINY, GpuResult, GpuSpec, run_gpu_trainer
from benchmarks.image_sets import IMAGE_SETS, ImageSet, data_directory, prepare_images
from benchmarks.loading import Loading
from benchmarks.options import positive
from benchmarks.report import BenchmarkReport, Column, describe_machine
from benchmarks.resnet import RESNETS
from benchmarks.services import Services
from superdl.experiments.environment import describe_environment

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["GpuRun", "add_arguments", "measure", "rows_of"]

_METHOD = (
    (
        "A ResNet (the layers of torchvision's) trains in bf16 and channels_last. The trainer and its loader "
        "are held to some of the cores (--trainer-cores), functions, cache and coordinator to the others. "
        f"'{SYNTHETIC}' is one batch on the device, again and again: the images/s at which the model does "
        "not wait. A loader keeps up where '% of it' is near 100."
    ),
    (
        "Time is taken on the device. 'busy' is the share of the wall clock in which a step is under way; "
        "'waiting' is the gap between steps, copies that are not overlapped included; 'copy' is a batch's "
        "way from page-locked memory to the device, alone: where waiting is far below it, copies overlap. "
        "'NVML' is the driver's figure, with nvidia-ml-py installed. 'supply' is the loader alone, to the "
        "device. Figures are of the epochs after the first one (--epochs), with everything cached; 'first "
        "epoch' begins with an empty cache and warm kernels."
    ),
)

_COLUMNS = (
    Column("loader", "loader"),
    Column("num_workers", "work-\ners", "d"),
    Column("images_per_s", "images\n/s", ",.0f"),
    Column("percent_of_synthetic", "\n% of it", ".1f"),
    Column("busy_percent", "\n% busy", ".1f"),
    Column("nvml_percent", "%\nNVML", ".1f"),
    Column("waiting_ms_per_step", "waiting\nms/step", ".2f"),
    Column("copy_ms", "copy\nms", ".2f"),
    Column("supply_images_per_s", "supply\nimages/s", ",.0f"),
    Column("first_epoch_images_per_s", "first epoch\nimages/s", ",.0f"),
    Column("trainer_cpu_ms_per_image", "CPU ms\n/image", ".3f"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    models = (*RESNETS, TINY)
    parser.add_argument("--models", nargs="+", choices=models, default=list(RESNETS), help="models (ResNets)")
    parser.add_argument("--device", default="cuda", help="torch device (cuda); cpu only to see that it works")
    parser.add_argument("--images", choices=IMAGE_SETS, default="photos", help="image set (photos)")
    parser.add_argument("--photos", type=positive, default=4096, help="images of the set photos (4096)")
    parser.add_argument("--batch-size", type=positive, default=256, help="(256)")
    parser.add_argument("--workers", type=positive, default=4, help="of the DataLoaders (4)")
    parser.add_argument("--trainer-cores", type=positive, default=4, help="cores of the trainer (4)")
    parser.add_argument("--epochs", type=positive, default=5, help="measured after the first (5)")
    parser.add_argument(
        "--data", metavar="DIR", help="where image sets are kept (below the temporary directory)"
    )


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Train with each loader; ``say`` is told what happens.

    Raises:
        BenchmarkError: there is no such device, or too few cores.
        SuperError: images or services cannot be had, or a trainer failed.

    """
    device = _device(arguments.device)
    cores = Cores.split(arguments.trainer_cores)
    began_s, started_at = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    environment = {**describe_machine(), **describe_environment(device)}
    say("preparing images")
    images = prepare_images(arguments.images, data_directory(arguments.data), arguments.photos)
    runs: list[GpuRun] = []
    for model in arguments.models:
        for contender in (SYNTHETIC, PILLOW, SUPER, SUPER_LOADER):
            say(f"{model}: {contender}")
            spec = _spec(contender, model, images, arguments, cores)
            workers = spec.loading.num_workers
            result = _trained(spec, cores)
            _check(spec, result)
            runs.append(GpuRun(contender, model, workers, spec.epochs, result))
    group = {"device": environment["device_name"] or device.type, "batch_size": arguments.batch_size}
    return BenchmarkReport(
        benchmark="gpu",
        started_at=started_at,
        wall_s=time.perf_counter() - began_s,
        settings={
            "image_sets": {images.name: {"about": images.about, "images": images.images}},
            **{name: getattr(arguments, name) for name in ("models", "batch_size", "workers", "epochs")},
            "trainer_cores": len(cores.trainer),
            "other_cores": len(cores.others),
        },
        method=_METHOD,
        group_by=("device", "batch_size", "model"),
        columns=_COLUMNS,
        rows=tuple({**group, **row} for row in rows_of(runs)),
        rounds=tuple(asdict(run) for run in runs),
        environment=environment,
    )


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
            "nvml_percent": one.nvml_percent,
            "waiting_ms_per_step": 1e3 * one.waiting_s / one.steps,
            "copy_ms": one.copy_ms,
            "supply_images_per_s": None if run.contender == SYNTHETIC else epoch_images / one.supply_s,
            "first_epoch_images_per_s": epoch_images / one.first_epoch_s,
            "trainer_cpu_ms_per_image": 1e3 * one.trainer_cpu_s / one.images,
        }


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BenchmarkError(f"--device is a torch device such as cuda; not {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError(
            "there is no CUDA device here, or this torch was built without CUDA: run this benchmark on a "
            "machine with an NVIDIA GPU, or with --device cpu --models tiny to see that it works"
        )
    if device.type not in ("cuda", "cpu"):
        raise BenchmarkError(f"--device is cuda, or cpu to see that it works; not {name!r}")
    return device


def _spec(
    contender: str, model: str, images: ImageSet, arguments: argparse.Namespace, cores: Cores
) -> GpuSpec:
    kind = CONTENDERS.get(contender)
    with_workers = kind is not None and kind.workers.allow(arguments.workers)
    loading = Loading(
        directory=images.directory,
        converted=images.converted,
        resize=images.resize,
        crop=images.crop,
        batch_size=arguments.batch_size,
        num_workers=arguments.workers if with_workers else 0,
        device=arguments.device,
    )
    return GpuSpec(contender, loading, model, cores.trainer, arguments.epochs, images.images)


def _trained(spec: GpuSpec, cores: Cores) -> GpuResult:
    with held_to(cores.others):
        if spec.contender not in (SUPER, SUPER_LOADER):
            return run_gpu_trainer(spec)
        with Services.start("gpu") as services:
            loading = replace(spec.loading, coordinator=services.coordinator)
            return run_gpu_trainer(replace(spec, loading=loading))


def _check(spec: GpuSpec, result: GpuResult) -> None:
    """A figure that is not of what it says is worse than none."""
    if spec.contender != SYNTHETIC and result.images != spec.epochs * spec.images:
        raise BenchmarkError(
            f"{spec.contender}: {result.images} images came instead of {spec.epochs} times {spec.images}"
        )
