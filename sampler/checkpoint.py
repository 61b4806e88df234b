"""Sampler states: positions in the plan as small JSON-compatible dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from superdl.sampler.prefetch import PlanPosition
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from superdl.sampler.ordering import UserOrder
    from superdl.sampler.session import JobSpec

STATE_VERSION = 1

_MAX_EPOCH = 2**40
_MAX_AHEAD = 1024
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
    """Converts positions in a sampler's plan to states and back. ``batches`` is the length of an epoch."""

    def __init__(
        self,
        spec: JobSpec,
        fingerprint: bytes,
        batches: int,
        *,
        in_order: bool,
        order: UserOrder | None = None,
    ) -> None:
        # If the user's sampler draws the order, the epoch's length is still unknown.
        self._batches = batches if order is None else _MAX_EPOCH
        self._order = order
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
        """Return the state for a position."""
        state = self._fields | {
            "epoch": at.epoch,
            "position": at.position,
            "given_ahead": list(at.delivered_ahead),
        }
        return state if self._order is None else state | self._order.state_of(at.epoch)

    def position_in(self, state: Mapping[str, Any]) -> PlanPosition:
        """Return the position saved in ``state``.

        Raises ``ConfigError`` if the state is invalid or belongs to a different plan. The message lists the
        differences.
        """
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
                f"this state's given_ahead is {str(ahead)[:200]}, but it may only contain positions between "
                f"{position} and {self._batches}"
            )
        if self._order is not None:
            self._order.load(state["epoch"], state)
        return PlanPosition(state["epoch"], position, tuple(sorted(set(ahead))))

    def _check_plan(self, state: Mapping[str, Any]) -> None:
        here = self._fields
        differences = [
            f"{name} is {state[name]!r} in the state but {here[name]!r} here"
            for name in _MUST_AGREE
            if state[name] != here[name]
        ]
        if ("order" in state) != (self._order is not None):
            differences.append("only one of the two has an order drawn by your own sampler")
        if state.get("draws") != here.get("draws"):
            differences.append("indices, weights, draws or repeats differ from those in the state")
        if state.get("mix") != here.get("mix"):
            differences.append("the mix's datasets, sizes or proportions differ from those in the state")
        # Any number of ranks that form the same global batches can resume.
        saved, current = (plan["batch_size"] * plan["world_size"] for plan in (state, here))
        if saved != current:
            differences.append(
                f"the global batch is {state['batch_size']} x {state['world_size']} ranks = {saved} in the "
                f"state but {here['batch_size']} x {here['world_size']} ranks = {current} here"
            )
        if differences:
            hint = ""
            if state["fingerprint"] != here["fingerprint"]:
                hint = " (the fingerprint changes when source files are added, removed or changed)"
            raise ConfigError(
                f"this state belongs to a different plan: {'; '.join(differences)}{hint}. Create the sampler "
                "with the arguments it had when the state was saved, or start over without the state"
            )
        same_rank = (state["rank"], state["world_size"]) == (here["rank"], here["world_size"])
        if not (same_rank or state["in_order"]):
            raise ConfigError(
                f"this state was saved with in_order=False by rank {state['rank']} of {state['world_size']}, "
                f"but this is rank {here['rank']} of {here['world_size']}. With in_order=False, each rank "
                "follows its own order: save and load each rank's own state, or use in_order=True"
            )


def _check_kinds(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping):
        raise ConfigError(f"a state must be a dict returned by state_dict(), not {type(state).__name__}")
    version = state.get("version", STATE_VERSION)
    if type(version) is not int or version != STATE_VERSION:
        raise ConfigError(
            f"this state has version {version!r}, but this sampler reads version {STATE_VERSION}. "
            "Load it with the SUPER version that saved it"
        )
    missing = [name for name in _KINDS if name not in state]
    if missing:
        raise ConfigError(f"this is not a SuperSampler state: it lacks {', '.join(missing)}")
    for name, kind in _KINDS.items():
        if type(state[name]) is not kind:
            shown = repr(state[name])[:200]
            raise ConfigError(f"this state's {name} is {shown}, which is not a valid {kind.__name__}")


def extract_sampler_state(state: Any) -> Any:
    """Return the sampler's part of a ``StatefulDataLoader`` state, or ``state`` itself if it is not one."""
    if not isinstance(state, Mapping):
        return state
    # With workers, the main process's part is inside a snapshot.
    snapshot = state.get("_snapshot")
    main = snapshot.get("_main_snapshot") if isinstance(snapshot, Mapping) else state
    inner = main.get("_sampler_iter_state") if isinstance(main, Mapping) else None
    if not isinstance(inner, Mapping):
        return state
    if state.get("_steps_since_snapshot"):
        raise ConfigError(
            "this StatefulDataLoader state was saved between two snapshots (snapshot_every_n_steps), so it "
            "does not contain the sampler's position. Load it into a loader with the same number of workers"
        )
    return inner
