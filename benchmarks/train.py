"""``superdl bench train``: one core trains, and the decoding is on that core or on the others.

It decides which trainers run, on which cores, and makes figures of what they measured. A trainer itself is
:mod:`benchmarks.trainer`'s.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from benchmarks.contenders import CONTENDERS, PILLOW, SUPER, SUPER_LOADER
from benchmarks.cores import Cores, held_to
from benchmarks.errors import BenchmarkError
from benchmarks.image_sets import IMAGE_SETS, ImageSet, data_directory, prepare_images
from benchmarks.loading import Loading
from benchmarks.options import not_negative, positive
from benchmarks.report import BenchmarkReport, describe_machine
from benchmarks.services import Services
from benchmarks.train_figures import COLUMNS, Alone, TrainRun, rows_of
from benchmarks.trainer import TrainResult, TrainSpec, run_trainer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

__all__ = ["add_arguments", "measure"]

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--images", choices=IMAGE_SETS, default="photos", help="image set (photos)")
    parser.add_argument("--photos", type=positive, default=2048, help="images of the set photos (2048)")
    parser.add_argument("--batch-size", type=positive, default=128, help="(128)")
    parser.add_argument("--workers", type=not_negative, default=2, help="of the DataLoaders (2)")
    parser.add_argument("--width", type=positive, default=8, help="channels of the network's first stage (8)")
    parser.add_argument("--epochs", type=positive, default=3, help="after the first one of each trainer (3)")
    parser.add_argument("--rounds", type=positive, default=3, help="how often each trainer runs (3)")
    parser.add_argument(
        "--data", metavar="DIR", help="where image sets are kept (below the temporary directory)"
    )


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Train with each loader; ``say`` is told what happens.

    Raises:
        SuperError: there is one core only, images or services cannot be had, or a trainer failed.

    """
    began_s, started_at = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    environment = describe_machine()
    cores = Cores.split(1)
    say("preparing images")
    images = prepare_images(arguments.images, data_directory(arguments.data), arguments.photos)
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
    return BenchmarkReport(
        benchmark="train",
        started_at=started_at,
        wall_s=time.perf_counter() - began_s,
        settings={
            "image_sets": {images.name: {"about": images.about, "images": images.images}},
            **{name: getattr(arguments, name) for name in settings},
            "trainer_cores": len(cores.trainer),
            "other_cores": len(cores.others),
            "decode_ms_per_image": alone.decode_ms_per_image,
            "compute_ms_per_image": alone.compute_ms_per_image,
            "decode_to_compute": alone.decode_to_compute,
            "loss_difference_max": loss_difference(runs),
        },
        method=(
            *_METHOD,
            (
                f"Alone, an image takes {alone.decode_ms_per_image:.2f} ms of CPU to decode and "
                f"{alone.compute_ms_per_image:.2f} ms to train on: decoding is "
                f"{alone.decode_to_compute:.1f} times computing. Losses of equal steps differ by "
                f"{loss_difference(runs):.2g} at most."
            ),
        ),
        group_by=tuple(group),
        columns=COLUMNS,
        rows=tuple({**group, **row} for row in rows),
        rounds=tuple(run.to_mapping() for run in runs),
        environment=environment,
    )


def _trained(contender: str, images: ImageSet, arguments: argparse.Namespace, cores: Cores) -> TrainResult:
    kind = CONTENDERS[contender]
    loading = Loading(
        directory=images.directory,
        converted=images.converted,
        resize=images.resize,
        crop=images.crop,
        batch_size=arguments.batch_size,
        num_workers=arguments.workers if kind.workers.allow(arguments.workers) else 0,
    )
    plain = contender == PILLOW
    spec = TrainSpec(
        contender=contender,
        loading=loading,
        cores=cores.trainer,
        width=arguments.width,
        epochs=arguments.epochs + 1,
        alone=plain,
    )
    with held_to(cores.others):
        if plain:
            return run_trainer(spec)
        with Services.start("train") as services:
            return run_trainer(
                replace(
                    spec,
                    loading=replace(loading, coordinator=services.coordinator),
                    cache_pid=services.cache_pid,
                    coordinator_pid=services.coordinator_pid,
                )
            )


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
