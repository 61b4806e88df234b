"""The figures of ``superdl bench train``: step times, gains and what bounds them, from what trainers
measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import CONTENDERS, PILLOW
from benchmarks.report import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.trainer import EpochResult, TrainResult

__all__ = ["COLD", "COLUMNS", "LATER", "WARM", "Alone", "TrainRun", "rows_of"]

COLD = "cold"
WARM = "warm"
LATER = "later"

COLUMNS = (
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
    kind = CONTENDERS[contender]
    used = workers if kind.workers.allow(workers) else 0
    return {"contender": contender, "loader": kind.title, "workers": used, "epochs": part}


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
