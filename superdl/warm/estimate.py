"""What warming a source will take and cost, before anything is produced: plain arithmetic.

Memory is counted as the coordinator counts it, money at the prices that the coordinator told, work at the
rates of :mod:`superdl.cost.scenario`, which are assumptions until functions have run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.core import footprint
from superdl.cost.scenario import PRESETS, Scenario
from superdl.super_wire.executors import EXECUTORS, RunsOn
from superdl.super_wire.record import HEADER_BYTES
from superdl.warm.allowance import Means, batch_size_for

if TYPE_CHECKING:
    from superdl.coordinator.core import Prices
    from superdl.super_wire.recipe import Recipe

__all__ = ["Estimate", "Standing", "estimate_of", "memory_of", "record_bytes_of"]

_GUESSED_BYTES = 2**20
_ASPECT = 4 / 3
_MIB_PER_GIB = 1024
_MS = 1e-3


@dataclass(frozen=True, slots=True)
class Standing:
    """What a coordinator says before a job is opened: of the dataset, its cache, its executors."""

    samples: int
    budget_bytes: int
    free_bytes: int
    resident_samples: int
    resident_bytes: int
    prices: dict[str, Prices]
    lookahead_batches: int
    """How far it looks ahead of a rank at most."""
    cache: str = ""
    """Its cache's address, and of the dataset what tells whether a listing is the coordinator's."""
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is to be expected.

    ``fits`` of the samples have room beside what the cache holds (some of which may be this source's);
    invocations, GETs, ``gb_s`` and US dollars are those of producing all of them.
    """

    samples: int
    fits: int
    record_bytes: int
    guessed: bool
    """Whether the size of a record is a guess, since the recipe does not say it."""
    cache_bytes: int
    budget_bytes: int
    free_bytes: int
    invocations: int
    gets: int
    gb_s: dict[str, float]
    usd: dict[str, float]
    lookahead_batches: int
    work_usd: float = 0.0
    """Of a sample, by the executor that is preferred, without its share of an invocation."""
    invocation_usd: float = 0.0
    """Of an invocation by it, whatever it produces."""
    request_samples: int = 1
    """Samples for an invocation, at most."""
    cache: str = ""
    fingerprint: bytes = b""

    def sample_usd(self, batch_size: int) -> float:
        """US dollars for a sample in batches of this size: a function is seldom given more than a batch."""
        return self.work_usd + self.invocation_usd / max(1, min(batch_size, self.request_samples))

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "samples": self.samples,
            "fits": self.fits,
            "record_bytes": self.record_bytes,
            "record_bytes_guessed": self.guessed,
            "cache_bytes": self.cache_bytes,
            "budget_bytes": self.budget_bytes,
            "free_bytes": self.free_bytes,
            "invocations": self.invocations,
            "gets": self.gets,
            "gb_s": dict(self.gb_s),
            "usd": dict(self.usd),
        }


def memory_of(record_bytes: int) -> int:
    """The memory that a record takes in the cache."""
    return int(footprint(np.array([record_bytes]))[0])


def record_bytes_of(recipe: Recipe) -> tuple[int, bool]:
    """The size of a record, and whether that is a guess."""
    shape = recipe.output_shape
    if shape is not None:
        return HEADER_BYTES + math.prod(shape), False
    resizes = [int(step["size"]) for step in recipe.steps if step["op"] == "resize"]
    return HEADER_BYTES + int(resizes[-1] ** 2 * _ASPECT * 3) if resizes else _GUESSED_BYTES, True


def estimate_of(
    standing: Standing, recipe: Recipe, source: str, rates: Scenario = PRESETS["imagenet"]
) -> Estimate:
    """What to expect of filling the cache with as much of the source as fits."""
    record_bytes, guessed = record_bytes_of(recipe)
    each = memory_of(record_bytes)
    fits = max(0, min(standing.samples, standing.free_bytes // each))
    means = Means(standing.free_bytes, each)
    lookahead = standing.lookahead_batches
    size = batch_size_for(standing.samples, means, lookahead=lookahead, sure=not guessed)
    request_samples = rates.request_samples
    invocations = math.ceil(fits / max(1, min(size, request_samples)))
    gb = rates.function_mb / _MIB_PER_GIB
    work_gb_s, more_gb_s = {}, {}
    for name in standing.prices:
        kind = EXECUTORS.get(name)
        core = rates.lambda_vcpu if kind is not None and kind.runs_on is RunsOn.SERVICE else 1.0
        work_gb_s[name] = gb * rates.function_cpu_ms * _MS / core
        more_gb_s[name] = gb * rates.request_s
    get = 0 if source.startswith("file:") else 1
    work_usd = {
        name: work_gb_s[name] * of.gb_s
        + get * of.source_request
        + rates.source_bytes / 2**30 * of.source_gb
        + record_bytes / 2**30 * of.record_gb
        for name, of in standing.prices.items()
    }
    invocation_usd = {name: of.invocation + more_gb_s[name] * of.gb_s for name, of in standing.prices.items()}
    first = next(iter(standing.prices), "")
    return Estimate(
        samples=standing.samples,
        fits=fits,
        record_bytes=record_bytes,
        guessed=guessed,
        cache_bytes=fits * each,
        budget_bytes=standing.budget_bytes,
        free_bytes=standing.free_bytes,
        invocations=invocations,
        gets=get * fits,
        gb_s={name: fits * work_gb_s[name] + invocations * more_gb_s[name] for name in standing.prices},
        usd={name: fits * work_usd[name] + invocations * invocation_usd[name] for name in standing.prices},
        lookahead_batches=lookahead,
        work_usd=work_usd.get(first, 0.0),
        invocation_usd=invocation_usd.get(first, 0.0),
        request_samples=request_samples,
        cache=standing.cache,
        fingerprint=standing.fingerprint,
    )
