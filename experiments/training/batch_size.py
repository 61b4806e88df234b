"""Finds the largest batch whose step fits: forward, backward and the optimiser, with the spec's model.

On a GPU steps are tried, and one that runs out of memory does not fit. On a CPU nothing is run that could be
killed for it: a child process takes steps of growing batches, and its peak memory tells whether the next one
would stay below what is free. How a step is taken is left to `experiments.training.memory_probe`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BatchSizes", "Probe", "TriedBatch", "find_batch_size"]


@dataclass(frozen=True, slots=True)
class TriedBatch:
    """One size: the most memory that its step took, or, where it was not run, what it would have taken."""

    batch_size: int
    fits: bool
    memory_bytes: int | None
    measured: bool


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """What was found: the largest ``batch_size``, below ``limit_bytes``, and all that was tried for it."""

    batch_size: int
    device: str
    limit_bytes: int
    tried: tuple[TriedBatch, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        return asdict(self)


class Probe(Protocol):
    """Whatever can try a size."""

    @property
    def device(self) -> str:
        """Where: ``cpu`` or a GPU's name."""

    @property
    def limit_bytes(self) -> int:
        """How much memory there is."""

    def try_size(self, batch_size: int) -> TriedBatch:
        """Take a step of this size, or say that it would not fit."""


def find_batch_size(probe: Probe, at_most: int, tell: Callable[[str], None]) -> BatchSizes:
    """Double the size while it fits, then halve the gap between what fits and what does not.

    The gap is closed to a sixteenth of the size, since a batch is seldom worth tuning further. ``at_most`` is
    the number of samples that a rank has; ``tell`` gets a line for each size.

    Raises:
        ConfigError: a batch of one does not fit.

    """
    tried: list[TriedBatch] = []

    def fits(size: int) -> bool:
        one = probe.try_size(size)
        tried.append(one)
        tell(_line(one))
        return one.fits

    if not fits(1):
        raise ConfigError(
            f"not even a batch of one image fits into {_gib(probe.limit_bytes)} on {probe.device}; take a "
            "smaller model.name or recipe.crop, or a larger machine"
        )
    best, too_many = 1, None
    while best < at_most:
        size = min(2 * best, at_most)
        if not fits(size):
            too_many = size
            break
        best = size
    while too_many is not None and too_many - best > max(best // 16, 1):
        middle = (best + too_many) // 2
        if fits(middle):
            best = middle
        else:
            too_many = middle
    return BatchSizes(best, probe.device, probe.limit_bytes, tuple(tried))


def _line(one: TriedBatch) -> str:
    memory = "out of memory" if one.memory_bytes is None else _gib(one.memory_bytes)
    how = "" if one.measured else " as reckoned from smaller ones, not run"
    return f"batch {one.batch_size}: {memory}{how}, {'fits' if one.fits else 'does not fit'}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
