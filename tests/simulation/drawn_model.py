"""Describe the faults of a simulated world as plain values. Predictions have no faults."""

import math
from dataclasses import dataclass, replace

from superdl.experiments.simulator.world_model import DatasetModel, FunctionsModel, WorldModel


@dataclass(frozen=True)
class DrawnDataset(DatasetModel):
    """A catalog with bad samples."""

    undecodable: frozenset[int] = frozenset()  # a function writes a permanent tombstone for each
    poisonous: frozenset[int] = frozenset()  # each one crashes its function


@dataclass(frozen=True)
class DrawnFunctions(FunctionsModel):
    """Functions that fail for a while."""

    timeout_s: float = math.inf
    gone_s: tuple[tuple[float, float], ...] = ()  # periods during which they refuse requests
    wrong_until_s: float = 0.0  # every request raises until then


@dataclass(frozen=True)
class Faults:
    """Fault probabilities per request, sample or report, and the times of rare faults."""

    crash: float = 0.0
    hang: float = 0.0
    throttle: float = 0.0
    unavailable: float = 0.0
    twice: float = 0.0
    sample_error: float = 0.0
    expired: float = 0.0
    lost_report: float = 0.0
    corrupt: float = 0.0
    rots: float = 0.0  # share of the store's records that become unreadable
    store_gone_s: tuple[tuple[float, float], ...] = ()
    store_full_s: tuple[tuple[float, float], ...] = ()
    flushes_s: tuple[float, ...] = ()
    outages_s: tuple[float, ...] = ()  # the cache goes down and comes back empty a second later
    evictions_s: tuple[float, ...] = ()  # the server evicts a third of what it holds
    coordinator_deaths_s: tuple[float, ...] = ()
    pack_losses_s: tuple[float, ...] = ()  # a third of all packs vanishes without the coordinator knowing
    prunes_s: tuple[float, ...] = ()  # the coordinator removes a third of all packs
    resizes: tuple[tuple[float, float], ...] = ()  # (time, share of the initial budget)


NO_FAULTS = Faults()  # the world checks for this very object and then draws no chances, as in a prediction


@dataclass(frozen=True)
class DrawnModel(WorldModel):
    """A simulated world with faults."""

    faults: Faults = NO_FAULTS
    cache_refuses: bool = False  # whether a full cache refuses writes; otherwise it evicts at random
    events_max: int = 200_000


def as_drawn(model):
    """Return a copy of the model whose parts can all have faults."""

    def into(kind, value):
        return value if isinstance(value, kind) else kind(**vars(value))

    return replace(
        into(DrawnModel, model),
        functions=into(DrawnFunctions, model.functions),
        others=tuple(into(DrawnFunctions, functions) for functions in model.others),
        datasets={name: into(DrawnDataset, data) for name, data in model.datasets.items()},
    )
