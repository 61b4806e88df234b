"""What all hosts of a run are to be told alike; a host tells its leader digests of it.

The training command is not among it: it may name the host, as a folder for its logs does.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from infra.launcher.ray_auth import has_own_way

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.launcher.cluster import Cluster
    from infra.launcher.settings import LaunchSettings

__all__ = ["difference", "terms_of"]

_DIGITS = 32
_ALIKE = ("executor", "coordinator", "torchrun", "control_port", "master_port")


def terms_of(cluster: Cluster, settings: LaunchSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """A digest of each thing that is to be the same, by its name for people."""
    told: dict[str, Any] = {
        "--data-hosts (data group)": cluster.data_hosts,
        "--training-hosts (training group)": cluster.training_hosts,
        **{f"--{name.replace('_', '-')}": getattr(settings, name) for name in _ALIKE},
        "--trainer-cpus (some, or none)": bool(settings.trainer_cpus),
        "TRAINING_JOB_NAME": environment.get("TRAINING_JOB_NAME", ""),
    }
    if settings.own_ray:
        told["RAY_AUTH_MODE, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH (set, or not)"] = has_own_way(environment)
    return {name: hashlib.sha256(repr(value).encode()).hexdigest()[:_DIGITS] for name, value in told.items()}


def difference(ours: Mapping[str, str], theirs: Any) -> str:
    """The first that a host was told otherwise than its leader; empty if there is none."""
    if not isinstance(theirs, dict):
        return next(iter(ours), "")
    return next((name for name, digest in ours.items() if theirs.get(name) != digest), "")
