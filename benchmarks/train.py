"""``superdl bench train``: a core trains, and decoding is on that core or on the others.

It decides which trainers run, and makes figures of what was measured. A trainer is
:mod:`benchmarks.trainer`'s.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import not_negative, positive
from benchmarks.arm import ArmSpec, Lap, run_checked
from benchmarks.contenders import CONTENDERS, PILLOW, SUPER, SUPER_LOADER
from benchmarks.image_sets import add_image_options, described, prepare_images
from benchmarks.loading import open_in_planned_order
from benchmarks.processes import BenchmarkError, held_to, run_child, usable_cores
from benchmarks.results import BenchmarkReport, Column, Run, Started, by_conditions
from benchmarks.services import loader_services
from benchmarks.trainer import Alone, TrainerSpec, costs_alone, warmed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["add_arguments", "loss_difference", "measure", "rows_of"]

_LOSS_DIFFERENCE_MAX = 1e-3

_METHOD = (
    (
        "A trainer that is held to one core, with one torch thread, trains a small ResNet. "
        f"'{CONTENDERS[PILLOW].title}' decodes in workers on the same core. With SUPER, functions, "
        "cache and coordinator are held to the other cores, and the trainer with its loader to its own. All "
        "train the same network on the same batches in the same order: SUPER's plan; a checksum of pixels "
        "and labels is compared, and the loss of every step."
    ),
    (
        "Step time is the wall clock of an epoch over its steps, the start of its iterator included. "
        "'waiting' is the share of it in which no step is under way; workers on the trainer's own core slow "
        "the computing down as well, which it does not show. 'cold': the first epoch, functions warm, cache "
        "empty; functions begin while the loader is opened: their CPU counts from then on, the step time "
        "does not. 'warm': the later ones, everything cached. Of Pillow epochs from the second one on count, "
        "whose workers run. Figures are medians over epochs and rounds; each cold epoch has fresh services."
    ),
    (
        "'gain' is the step time with Pillow over this row's. 'at most': the step time with Pillow over what "
        "the step cannot go below, the larger of two times: computing alone, of one batch in "
        "memory, and what CPU functions and services spent, over the other cores. Where functions decode "
        "no faster than Pillow, one added core caps the cold gain at 2."
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
    add_image_options(parser, photos=2048)
    parser.add_argument("--batch-size", type=positive, default=128, help="(128)")
    parser.add_argument("--workers", type=not_negative, default=2, help="of the DataLoaders (2)")
    parser.add_argument("--width", type=positive, default=8, help="channels of the network's first stage (8)")
    parser.add_argument("--epochs", type=positive, default=3, help="after the first one of each trainer (3)")
    parser.add_argument("--rounds", type=positive, default=3, help="how often each trainer runs (3)")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Train with each loader; ``say`` gets a line for each.

    Raises:
        SuperError: no core is left for functions, images or services cannot be had, or a trainer failed.

    """
    started = Started(arguments)
    mine, *others = usable_cores(2, "this benchmark holds the trainer to a core and functions to the others")
    images = prepare_images(arguments.images, arguments, say)
    spec = TrainerSpec(replace(images, batch_size=arguments.batch_size), arguments.width, mine)
    with held_to(others):  # what is started here stays there, but for the trainer
        say("decoding and computing, each alone")
        alone = run_child(costs_alone, spec, name="decoding and computing alone")
        runs: list[Run[Lap]] = []
        for number in range(1, arguments.rounds + 1):
            for contender in (PILLOW, SUPER, SUPER_LOADER):
                say(f"round {number} of {arguments.rounds}: {CONTENDERS[contender].title}")
                laps = _trained(contender, spec, arguments)
                for epoch, lap in enumerate(laps):
                    runs.append(Run({"contender": contender, "epoch": epoch}, number, lap))
                _check_same_training(runs)
    rows = rows_of(runs, alone, workers=arguments.workers, other_cores=len(others))
    group = {"images": images.name, "batch_size": arguments.batch_size}
    alone_line = (
        f"Alone, an image takes {alone.decode_ms_per_image:.2f} ms of CPU to decode and "
        f"{alone.compute_ms_per_image:.2f} ms to train on: decoding is {alone.decode_to_compute:.1f} times "
        f"computing, which is {1e3 / alone.compute_ms_per_image:,.0f} images/s. Losses of equal steps "
        f"differ by {loss_difference(runs):.2g} at most."
    )
    return started.report(
        image_sets=described([images]),
        other_cores=len(others),
        **asdict(alone),
        decode_to_compute=alone.decode_to_compute,
        loss_difference_max=loss_difference(runs),
        method=(*_METHOD, alone_line),
        group_by=tuple(group),
        columns=_COLUMNS,
        rows=({**group, **row} for row in rows),
        rounds=(run.to_mapping() for run in runs),
    )


def _trained(contender: str, spec: TrainerSpec, arguments: argparse.Namespace) -> list[Lap]:
    """Train with a contender, SUPER with fresh services."""
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
        raise BenchmarkError(f"{last} gave other pixels or labels than {first}")
    difference = loss_difference(runs)
    if not difference <= _LOSS_DIFFERENCE_MAX:
        raise BenchmarkError(
            f"{last} trained otherwise than {first}: losses of equal steps differ by {difference:.3g}"
        )


def loss_difference(runs: Sequence[Run[Lap]]) -> float:
    """By how much the losses of equal steps differ between any run and the first, at most."""
    expected: dict[int, Sequence[float]] = {}
    differences = [0.0]
    for run in runs:
        losses = expected.setdefault(run.conditions["epoch"], run.result.losses)
        differences += [abs(one - other) for one, other in zip(run.result.losses, losses, strict=True)]
    return max(differences)


# -------------------------------------------------------------------------------------------- figures


def rows_of(
    runs: Sequence[Run[Lap]], alone: Alone, *, workers: int, other_cores: int
) -> Iterator[dict[str, Any]]:
    """A row for Pillow's later epochs, and two for each other loader."""
    laps: dict[str, tuple[list[Lap], list[Lap]]] = {}
    for conditions, some in by_conditions(runs):
        first, later = laps.setdefault(conditions["contender"], ([], []))
        (later if conditions["epoch"] else first).extend(some)
    _, plain_laps = laps.pop(PILLOW)
    plain = _figures(plain_laps)
    yield {**_named(PILLOW, "later", workers), **plain, "gain": 1.0, "gain_bound": None}
    for contender, parts in laps.items():
        for part, some in zip(("cold", "warm"), parts, strict=True):
            figures = _figures(some)
            beside_ms = figures["functions_cpu_ms_per_image"] + figures["services_cpu_ms_per_image"]
            yield {
                **_named(contender, part, workers),
                **figures,
                "gain": plain["step_ms"] / figures["step_ms"],
                "gain_bound": alone.gain_bound(1e3 / plain["images_per_s"], beside_ms / other_cores),
            }


def _named(contender: str, part: str, workers: int) -> dict[str, Any]:
    form = CONTENDERS[contender]
    used = form.workers_of(workers)
    return {"contender": contender, "loader": form.title, "workers": used, "epochs": part}


def _figures(laps: Sequence[Lap]) -> dict[str, float]:
    services_ms = (1e3 * (one.coordinator_cpu_s + one.cache_cpu_s) / one.images for one in laps)
    return {
        "step_ms": 1e3 * median(one.wall_s / one.steps for one in laps),
        "wait_percent": 100 * median(one.wait_s / one.wall_s for one in laps),
        "images_per_s": median(one.images / one.wall_s for one in laps),
        "functions_cpu_ms_per_image": 1e3 * median(one.functions_cpu_s / one.images for one in laps),
        "services_cpu_ms_per_image": median(services_ms),
    }
