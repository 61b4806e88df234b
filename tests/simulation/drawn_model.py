"""The faults of a simulated world as plain values, which predictions have none of."""

import math
from dataclasses import dataclass, replace

from superdl.experiments.simulator.world_model import DatasetModel, FunctionsModel, WorldModel


@dataclass(frozen=True)
class DrawnDataset(DatasetModel):
    """A catalog with bad samples."""

    undecodable: frozenset[int] = frozenset()  # a function writes a permanent tombstone for each
    poisonous: frozenset[int] = frozenset()  # each crashes a function


@dataclass(frozen=True)
class DrawnFunctions(FunctionsModel):
    """Functions that fail for some time."""

    timeout_s: float = math.inf
    gone_s: tuple[tuple[float, float], ...] = ()  # periods during which it refuses requests
    wrong_until_s: float = 0.0  # until then every request raises


@dataclass(frozen=True)
class Faults:
    """Probabilities of faults per request, sample or report, and the times of what is rare."""

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
    outages_s: tuple[float, ...] = ()  # the cache goes, and comes back empty a second later
    evictions_s: tuple[float, ...] = ()  # the server evicts a third of what it holds
    coordinator_deaths_s: tuple[float, ...] = ()
    pack_losses_s: tuple[float, ...] = ()  # a third of all packs vanishes, unknown to the coordinator
    prunes_s: tuple[float, ...] = ()  # the coordinator removes a third of all packs
    resizes: tuple[tuple[float, float], ...] = ()  # when, and to what share of the first budget


NO_FAULTS = Faults()  # with these very faults a world draws no chances, as in a prediction


@dataclass(frozen=True)
class DrawnModel(WorldModel):
    """A simulation with faults."""

    faults: Faults = NO_FAULTS
    cache_refuses: bool = False  # whether a full cache refuses writes; else it evicts at random
    events_max: int = 200_000


def as_drawn(model):
    """Return a model whose parts may all have faults."""

    def into(kind, value):
        return value if isinstance(value, kind) else kind(**vars(value))

    return replace(
        into(DrawnModel, model),
        functions=into(DrawnFunctions, model.functions),
        others=tuple(into(DrawnFunctions, functions) for functions in model.others),
        datasets={name: into(DrawnDataset, data) for name, data in model.datasets.items()},
    )
