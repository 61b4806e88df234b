"""States of torchdata's ``StatefulDataLoader``: extraction of the sampler's state, check of the workers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from superdl.super_wire.errors import ConfigError

__all__ = ["check_workers", "sampler_state_in"]

_LOADERS = "torchdata.stateful_dataloader.stateful_dataloader"


def sampler_state_in(state: Any) -> Any:
    """Return the sampler's state within that of a ``StatefulDataLoader``; return any other state unchanged.

    Raises:
        ConfigError: it was taken between two snapshots of the sampler.
    """
    own = _main_of(state).get("_sampler_iter_state") if isinstance(state, Mapping) else None
    if not isinstance(own, Mapping):
        return state
    if state.get("_steps_since_snapshot"):
        raise ConfigError(
            "this state of a StatefulDataLoader was taken between two of the snapshots that "
            "snapshot_every_n_steps asks for, so that the sampler's place is not in it: give the state to a "
            "loader with as many workers as before"
        )
    return own


def check_workers() -> None:
    """Check that no ``StatefulDataLoader`` is about to load a state of a different number of workers.

    The loader itself merely asserts that the numbers are equal.

    Raises:
        ConfigError: the number differs; the message explains how to resume.
    """
    loader = _loader_that_asks()
    if loader is None or loader.next_iter_state is None:
        return
    saved = _main_of(loader.next_iter_state).get("_num_workers", 0)
    if saved != loader.num_workers:
        raise ConfigError(
            f"this state was taken with num_workers={saved}, and a StatefulDataLoader with num_workers="
            f"{loader.num_workers} cannot take it: use {saved}, or give the state to the sampler in place of "
            "the loader, sampler.load_state_dict(state), which goes on at the same batch with any number"
        )


def _loader_that_asks() -> Any:
    # The loader requests the sampler's iterator without identifying itself: find it among the callers.
    frame = sys._getframe()  # noqa: SLF001 # the one way to callers' variables
    while frame is not None:
        # Only variables of torchdata's frames: reading another frame's would keep its objects alive.
        if frame.f_globals.get("__name__") == _LOADERS:
            loader = frame.f_locals.get("self")
            if hasattr(loader, "next_iter_state"):
                return loader
        frame = frame.f_back  # type: ignore[assignment]  # at the outermost the loop ends
    return None


def _main_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the main process's part; a loader without workers has no other."""
    snapshot = state.get("_snapshot")
    main = snapshot.get("_main_snapshot") if isinstance(snapshot, Mapping) else state
    return main if isinstance(main, Mapping) else {}
