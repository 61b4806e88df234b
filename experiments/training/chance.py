"""The state of everything that draws by chance, as plain values, so that a resumed run draws the same.

Seeding is left to `experiments.device`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from superdl.experiments.ranks import Ranks

__all__ = ["chance_of", "restore_chance"]


def chance_of(device: torch.device, ranks: Ranks) -> dict[str, Any]:
    """The states of torch's generators, by rank, and of Python's and NumPy's; all ranks take part."""
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002  # what users' code draws from
    version, internal, following = random.getstate()
    return {
        "cpu": ranks.gathered(torch.get_rng_state()),
        "cuda": ranks.gathered(torch.cuda.get_rng_state(device)) if device.type == "cuda" else None,
        "python": [version, list(internal), following],
        "numpy": [str(name), [int(key) for key in keys], int(position), int(has_gauss), float(gauss)],
    }


def restore_chance(state: dict[str, Any], device: torch.device, ranks: Ranks) -> bool:
    """Restore this rank's; False where another number of ranks saved it, whose states are nobody's here.

    Raises:
        ConfigError: it is no such state.

    """
    try:
        return _restored(state, device, ranks)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"training.resume: the checkpoint's states of chance are damaged "
            f"({type(error).__name__}: {error})"
        ) from error


def _restored(state: dict[str, Any], device: torch.device, ranks: Ranks) -> bool:
    if len(state["cpu"]) != ranks.place.replicas:
        return False
    torch.set_rng_state(state["cpu"][ranks.place.rank])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"][ranks.place.rank], device)
    version, internal, following = state["python"]
    random.setstate((version, tuple(internal), following))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002  # the same
    return True
