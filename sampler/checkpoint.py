"""Sampler states, which store a position in the plan as a small JSON-compatible dict."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from superdl.sampler.prefetch import PlanPosition
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from superdl.sampler.ordering import UserOrder
    from superdl.sampler.session import JobSpec

_LOADERS = "torchdata.stateful_dataloader.stateful_dataloader"

STATE_VERSION = 1

_MAX_EPOCH = 2**40
_MAX_AHEAD = 1024
_MAX_BITS = 64
_MUST_AGREE = ("seed", "shuffle", "drop_last", "fingerprint")
_KINDS: dict[str, type] = {
    "version": int,
    "seed": int,
    "shuffle": bool,
    "drop_last": bool,
    "epoch": int,
    "position": int,
    "given_ahead": list,
    "fingerprint": str,
    "batch_size": int,
    "world_size": int,
    "rank": int,
    "in_order": bool,
}


class Checkpoint:
    """Conversion between positions in a sampler's plan and its states. An epoch has ``batches`` batches."""

    def __init__(
        self,
        spec: JobSpec,
        fingerprint: bytes,
        batches: int,
        *,
        in_order: bool,
        order: UserOrder | None = None,
    ) -> None:
        # If a user's sampler draws the order, the length of an epoch is not known yet.
        self._batches, self._order = batches if order is None else _MAX_EPOCH, order
        self._fields: dict[str, Any] = {
            "version": STATE_VERSION,
            "seed": spec.seed,
            "shuffle": spec.shuffle,
            "drop_last": spec.drop_last,
            "fingerprint": fingerprint.hex(),
            "batch_size": spec.batch_size,
            "world_size": spec.num_replicas,
            "rank": spec.rank,
            "in_order": in_order,
        }
        if spec.draws is not None and order is None:
            self._fields["draws"] = spec.draws.digest.hex()
        if spec.mix:
            self._fields["mix"] = [*spec.mix, spec.member] + [spec.mix_run] * (spec.mix_run > 1)

    def state_of(self, at: PlanPosition) -> dict[str, Any]:
        """Return a position as a state."""
        state = self._fields | {
            "epoch": at.epoch,
            "position": at.position,
            "given_ahead": list(at.delivered_ahead),
        }
        return state if self._order is None else state | self._order.state_of(at.epoch)

    def position_in(self, state: Mapping[str, Any]) -> PlanPosition:
        """Return the position in ``state``. If its plan differs, a ``ConfigError`` lists the differences."""
        _check_kinds(state)
        self._check_plan(state)
        position, ahead = state["position"], state["given_ahead"]
        if not 0 <= state["epoch"] <= _MAX_EPOCH:
            raise ConfigError(
                f"this state's epoch is {state['epoch']}, but it must be from 0 to {_MAX_EPOCH}"
            )
        if not 0 <= position <= self._batches:
            raise ConfigError(
                f"this state's position is {position}, but an epoch has {self._batches} batches"
            )
        if len(ahead) > _MAX_AHEAD or not all(
            type(other) is int and position < other < self._batches for other in ahead
        ):
            raise ConfigError(
                f"this state's given_ahead is {_shown(ahead)}, but it may only contain positions between "
                f"{position} and {self._batches}"
            )
        if self._order is not None:
            self._order.load(state["epoch"], state)
        return PlanPosition(state["epoch"], position, tuple(sorted(set(ahead))))

    def _check_plan(self, state: Mapping[str, Any]) -> None:
        here = self._fields
        differ = [
            f"{name} is {state[name]!r} in the state but {here[name]!r} here"
            for name in _MUST_AGREE
            if state[name] != here[name]
        ]
        if ("order" in state) != (self._order is not None):
            differ.append(
                "the order is drawn by your own sampler either in the state or here, but not in both"
            )
        if state.get("draws") != here.get("draws"):
            differ.append("the sampler's indices, weights, draws or repeats differ from those in the state")
        if state.get("mix") != here.get("mix"):
            differ.append("the datasets, sizes or proportions of the mix differ from those in the state")
        # Any number of ranks that form the same global batches can resume.
        saved, current = (plan["batch_size"] * plan["world_size"] for plan in (state, here))
        if saved != current:
            differ.append(
                f"the global batch is {state['batch_size']} x {state['world_size']} ranks = {saved} in the "
                f"state but {here['batch_size']} x {here['world_size']} ranks = {current} here"
            )
        if differ:
            hint = (
                " (the fingerprint changes when files of the source are added, removed or changed)"
                if state["fingerprint"] != here["fingerprint"]
                else ""
            )
            raise ConfigError(
                f"this state belongs to a different plan: {'; '.join(differ)}{hint}. Create the sampler with "
                "the arguments of the one that saved the state, or start over without loading it"
            )
        own = (state["rank"], state["world_size"]) == (here["rank"], here["world_size"])
        if not (own or state["in_order"]):
            raise ConfigError(
                f"this state was saved with in_order=False by rank {state['rank']} of {state['world_size']}, "
                f"but this is rank {here['rank']} of {here['world_size']}. With in_order=False, each rank "
                "follows its own order: save and load each rank's own state, or use in_order=True"
            )


def _check_kinds(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping):
        raise ConfigError(
            f"a state must be the dict that state_dict() returned, not {type(state).__name__} {_shown(state)}"
        )
    version = state.get("version", STATE_VERSION)
    if type(version) is not int or version != STATE_VERSION:
        raise ConfigError(
            f"this state has version {_shown(version)}, but this sampler reads version {STATE_VERSION}: "
            "load it with the version of SUPER that saved it"
        )
    missing = [name for name in _KINDS if name not in state]
    if missing:
        raise ConfigError(f"this is not the state of a SuperSampler: it lacks {', '.join(missing)}")
    for name, kind in _KINDS.items():
        value = state[name]
        wide = isinstance(value, int) and value.bit_length() > _MAX_BITS
        if type(value) is not kind or wide:
            raise ConfigError(f"this state's {name} is {_shown(value)}, which is not a valid {kind.__name__}")


def _shown(value: object) -> str:
    try:
        return repr(value)[:200]
    except ValueError:  # Python refuses to print an int of thousands of digits
        return f"a value of type {type(value).__name__} that cannot be printed"


def sampler_state_in(state: Any) -> Any:
    """Return the sampler's state in a ``StatefulDataLoader``'s state, or ``state`` if it is not one."""
    own = _main_of(state).get("_sampler_iter_state") if isinstance(state, Mapping) else None
    if not isinstance(own, Mapping):
        return state
    if state.get("_steps_since_snapshot"):
        raise ConfigError(
            "this state of a StatefulDataLoader was saved between two snapshots (snapshot_every_n_steps), so "
            "it does not contain the sampler's position: load it into a loader with the same number of "
            "workers as before"
        )
    return own


def check_workers() -> None:
    """Raise ``ConfigError`` if a ``StatefulDataLoader`` loads a state saved with other workers."""
    loader = _calling_loader()
    if loader is None or loader.next_iter_state is None:
        return
    # The loader itself merely asserts that the numbers are equal.
    saved = _main_of(loader.next_iter_state).get("_num_workers", 0)
    if saved != loader.num_workers:
        raise ConfigError(
            f"this state was saved with num_workers={saved}, so a StatefulDataLoader with num_workers="
            f"{loader.num_workers} cannot load it. Use {saved} workers, or load the state into the sampler "
            "with sampler.load_state_dict(state), which resumes at the same batch with any number of workers"
        )


def _calling_loader() -> Any:
    # The loader requests the sampler's iterator without identifying itself: find it among the callers.
    frame = sys._getframe()  # noqa: SLF001 # the only access to callers' variables
    while frame is not None:
        # Only variables of torchdata's frames: reading another frame's would keep its objects alive.
        if frame.f_globals.get("__name__") == _LOADERS:
            loader = frame.f_locals.get("self")
            if hasattr(loader, "next_iter_state"):
                return loader
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return None


def _main_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the main process's part of a state, which is all of it if there are no workers."""
    snapshot = state.get("_snapshot")
    main = snapshot.get("_main_snapshot") if isinstance(snapshot, Mapping) else state
    return main if isinstance(main, Mapping) else {}
