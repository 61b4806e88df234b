"""The arms of a comparison and their trials, as complete specs that are validated before the first run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.schema import apply_values
from superdl.experiments.spec import LOADER_KINDS, Spec, parse_spec
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

# The arms of a spec that lists none.
_DEFAULT_ARMS: dict[str, dict[str, Any]] = {
    "super": {"loader.kind": "super"},
    "torch": {"loader.kind": "torch"},
}
# Keys that the comparison sets for its runs.
_RESERVED = ("name", "output", "compare", "trials", "quick")
_LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of an arm. If the spec lists no trials, each arm has a single one with an empty name."""

    name: str
    spec: Spec


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the variants to compare. Its trials run concurrently. The keys of ``values`` are dotted."""

    name: str
    values: Mapping[str, Any]
    trials: tuple[Trial, ...]
    # The command to which `-m superdl.main run SPEC` is appended; empty means this Python.
    launch: tuple[str, ...] = ()

    @property
    def shares(self) -> bool:
        """Whether the comparison must start a coordinator for several trials to share."""
        loaders = [trial.spec.loader for trial in self.trials]
        return sum(loader.runs_functions and loader.coordinator is None for loader in loaders) > 1


class Round(NamedTuple):
    """One repeat of an arm. ``number`` counts all rounds and ``repeat`` those of the arm, both from 1."""

    number: int
    repeat: int
    arm: str


def rounds_of(arms: Sequence[str], repeats: int) -> tuple[Round, ...]:
    """Return all rounds in interleaved order, such as A B C, B C A, C A B."""
    # Each arm takes each position equally often, so that cold files, a warm processor or a slower machine
    # affect all arms alike.
    rounds: list[Round] = []
    for repeat in range(repeats):
        first = repeat % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            rounds.append(Round(len(rounds) + 1, repeat + 1, arm))
    return tuple(rounds)


def arms_of(spec: Spec, chosen: Sequence[str] | None = None) -> tuple[Arm, ...]:
    """Return the ``chosen`` arms of a spec, or all by default. Loader kinds can also be chosen as arms."""
    named = dict(spec.compare.arms) or dict(_DEFAULT_ARMS)
    if chosen is not None:
        known = {kind: {"loader.kind": kind} for kind in LOADER_KINDS} | named
        for name in chosen:
            if name not in known:
                raise ConfigError(
                    f"--arms contains {name!r}, which is neither in compare.arms nor a loader. Choose from "
                    f"{', '.join(dict.fromkeys((*named, *LOADER_KINDS)))}."
                )
        named = {name: known[name] for name in chosen}
        if len(named) < len(chosen):
            raise ConfigError(
                f"--arms must list each arm once, separated by commas, not {','.join(chosen)!r}"
            )
    return tuple(_arm(spec, name, values) for name, values in named.items())


def _arm(spec: Spec, name: str, values: Mapping[str, Any]) -> Arm:
    where = f"compare.arms.{name}"
    _check_values(where, values)
    launch = _launch_of(where, values)
    own_values = {key: value for key, value in values.items() if key != _LAUNCH}
    if not spec.trials:
        return Arm(name, values, (Trial("", _spec_of(spec, name, own_values, {}, where)),), launch)
    if launch:
        raise ConfigError(
            f"{where}: {_LAUNCH} starts a single run, but this spec has trials. Remove it or them."
        )
    trials = []
    for trial, trial_values in spec.trials.items():
        _check_values(f"trials.{trial}", trial_values)
        trial_spec = _spec_of(spec, f"{name}-{trial}", values, trial_values, f"trials.{trial} in {where}")
        trials.append(Trial(trial, trial_spec))
    return Arm(name, values, tuple(trials))


def _launch_of(where: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    text = values.get(_LAUNCH) or ""  # shlex would read standard input for None
    try:
        return tuple(shlex.split(text))
    except (ValueError, AttributeError, TypeError) as error:  # not text, or an open quote
        raise ConfigError(
            f"{where}: {_LAUNCH} must be a command to which '-m superdl.main run SPEC' can be appended, "
            f"such as 'torchrun --standalone --nproc-per-node 2', not {text!r} ({error})"
        ) from error


def _check_values(where: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if str(key).split(".")[0] in _RESERVED:
            raise ConfigError(f"{where}: the comparison sets {key}. Remove it.")
        if isinstance(value, Mapping):  # would replace the whole section
            first = next(iter(value), "key")
            raise ConfigError(
                f"{where}: {key} must not be a mapping. Use dotted keys, as in {key}.{first}: ..."
            )


def _spec_of(spec: Spec, suffix: str, arm: Mapping[str, Any], trial: Mapping[str, Any], where: str) -> Spec:
    # A trial's values take precedence over the arm's, and the arm's over the common ones.
    own = {**arm, **trial}
    mapping = spec.to_mapping() | {"compare": {}, "trials": {}, "name": f"{spec.name}-{suffix}"}
    try:
        mapping = apply_values(mapping, own)
        loader = mapping["loader"]
        if isinstance(loader, dict) and not str(loader.get("kind")).startswith("super"):
            # Other loaders do not use the common coordinator.
            loader["coordinator"] = own.get("loader.coordinator")
        run_spec = parse_spec(mapping)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    warmup = spec.compare.warmup_epochs
    if run_spec.epochs <= warmup:
        raise ConfigError(
            f"{where}: compare.warmup_epochs={warmup} leaves none of {run_spec.epochs} epoch(s) to compare. "
            "Set more epochs or fewer warm-up epochs."
        )
    return run_spec
