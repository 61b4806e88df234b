"""What warming a source will take and cost, before a job is opened and anything is produced.

Memory is counted as the coordinator counts it, money at the prices that the coordinator told, work at the
rates of :mod:`superdl.cost.scenario`, which are assumptions until functions have run.
"""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.core import Prices, footprint
from superdl.cost.scenario import PRESETS, Scenario
from superdl.sampler.rpc import FIRST_CONTACT, Client
from superdl.super_wire.executors import EXECUTORS, RunsOn
from superdl.super_wire.record import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_dataset import SuperDataset
    from superdl.super_wire.recipe import Recipe

__all__ = ["Estimate", "Standing", "estimate_of", "memory_of", "record_bytes_of", "standing_of"]

_LOG = logging.getLogger(__name__)

_GUESSED_BYTES = 2**20
_ASPECT = 4 / 3
_MIB_PER_GIB = 1024
_MS = 1e-3


@dataclass(frozen=True, slots=True)
class Standing:
    """What a coordinator says before a job is opened: of the dataset, its cache and its store, its executors.

    ``store`` is the store's address, empty without one; ``store_free_bytes`` may still be written to it.
    """

    samples: int
    budget_bytes: int
    free_bytes: int
    prices: dict[str, Prices]
    store: str = ""
    store_free_bytes: float = math.inf
    dataset_id: bytes = b""


def standing_of(address: str, dataset: SuperDataset, *, run: str, listed: Callable[[int], None]) -> Standing:
    """Register the dataset, wait until it is listed, and ask what the cache has and executors cost.

    Args:
        address: the coordinator's, checked.
        dataset: what is to be warmed.
        run: the run that shares the listing.
        listed: told how many samples were found so far.

    Raises:
        SourceError: the source cannot be listed, or its listing stands still.
        CoordinatorError: the coordinator does not answer, or refuses.
    """
    from superdl.super_wire import coordinator_pb2 as pb

    client = Client(address)
    with client.hold():
        facts, _ = client.register(dataset, run, listed=listed)
        for warning in facts.warnings:
            _LOG.warning("%s", warning)
        told = client.call("GetJobStats", pb.GetJobStatsRequest(), FIRST_CONTACT)
    units = [field.name for field in pb.ExecutorPrices.DESCRIPTOR.fields if field.name != "name"]
    cache = told.cache
    return Standing(
        samples=facts.size,
        budget_bytes=cache.budget_bytes,
        free_bytes=cache.free_bytes,
        prices={one.name: Prices(**{unit: getattr(one, unit) for unit in units}) for one in told.prices},
        store=cache.store,
        store_free_bytes=(cache.store_room_bytes or math.inf) - cache.store_used_bytes,
        dataset_id=facts.dataset_id,
    )


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is to be expected.

    ``fits`` of the samples have room beside what the cache holds, or the store if it goes ``to_store`` (some
    of which may be this source's); ``cache_bytes`` is the memory that they take, or the disk. Invocations,
    GETs, ``gb_s`` and US dollars, by executor, are those of producing all of them. The size of a record is
    guessed where the recipe does not say it.
    """

    samples: int
    fits: int
    record_bytes: int
    record_bytes_guessed: bool
    cache_bytes: int
    budget_bytes: int
    free_bytes: int
    invocations: int
    gets: int
    gb_s: dict[str, float]
    usd: dict[str, float]
    to_store: bool = False

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def memory_of(record_bytes: int) -> int:
    """The memory that a record takes in the cache."""
    return int(footprint(np.array([record_bytes]))[0])


def record_bytes_of(recipe: Recipe) -> tuple[int, bool]:
    """The size of a record, and whether that is a guess."""
    shape = recipe.output_shape
    if shape is not None:
        return HEADER_BYTES + math.prod(shape), False
    resizes = [step for step in recipe.steps if step["op"] == "resize" and isinstance(step["size"], int)]
    if not resizes:
        return _GUESSED_BYTES, True
    shorter = min(resizes[-1]["size"], resizes[-1].get("max_size", math.inf) / _ASPECT)
    channels = ([3] + [step["channels"] for step in recipe.steps if step["op"] == "grayscale"])[-1]
    return HEADER_BYTES + int(shorter**2 * _ASPECT * channels), True


def estimate_of(
    standing: Standing,
    recipe: Recipe,
    source: str,
    rates: Scenario = PRESETS["imagenet"],
    *,
    to_store: bool = False,
) -> Estimate:
    """What to expect of filling the cache, or the store, with as much of the source as fits."""
    record_bytes, guessed = record_bytes_of(recipe)
    each = record_bytes if to_store else memory_of(record_bytes)
    free_bytes, prices = standing.store_free_bytes if to_store else standing.free_bytes, standing.prices
    fits = max(0, int(min(standing.samples, free_bytes // each)))
    invocations = math.ceil(fits / rates.request_samples)
    gb, get = rates.function_mb / _MIB_PER_GIB, 0 if source.startswith("file:") else 1
    sample_gb_s, sample_usd, invocation_usd = {}, {}, {}
    for name, of in prices.items():
        kind = EXECUTORS.get(name)
        core = rates.lambda_vcpu if kind is not None and kind.runs_on is RunsOn.SERVICE else 1.0
        sample_gb_s[name] = gb * rates.function_cpu_ms * _MS / core
        moved_usd = rates.source_bytes / 2**30 * of.source_gb + record_bytes / 2**30 * of.record_gb
        sample_usd[name] = sample_gb_s[name] * of.gb_s + get * of.source_request + moved_usd
        invocation_usd[name] = of.invocation + gb * rates.request_s * of.gb_s
    return Estimate(
        samples=standing.samples,
        fits=fits,
        record_bytes=record_bytes,
        record_bytes_guessed=guessed,
        cache_bytes=fits * each,
        budget_bytes=standing.budget_bytes,
        free_bytes=standing.free_bytes,
        invocations=invocations,
        gets=get * fits,
        gb_s={name: fits * sample_gb_s[name] + invocations * gb * rates.request_s for name in prices},
        usd={name: fits * sample_usd[name] + invocations * invocation_usd[name] for name in prices},
        to_store=to_store,
    )
