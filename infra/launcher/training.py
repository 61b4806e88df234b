"""Training on one host: ``torch.distributed.run`` with this host's rank and the run's rendezvous.

The rendezvous is static: ranks follow the order of the hosts, not that of their arrival, so that rank 0 is
where the user expects it. Readiness of the others was waited for before.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from infra.launcher.addresses import interface_of
from infra.launcher.processes import Child
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.launcher.cluster import Cluster
    from infra.launcher.settings import LaunchSettings

__all__ = ["ranks_here", "training", "visible_gpus"]

_DEVICES = Path("/dev")
_TORCH_RUN = Path(__file__).with_name("torch_run.py")


def ranks_here(settings: LaunchSettings, environment: Mapping[str, str], devices: Path = _DEVICES) -> int:
    """How many ranks a training host has: as told, else one for each GPU, else one.

    Raises:
        ConfigError: ``SM_NUM_GPUS`` is no number.
    """
    if settings.ranks_per_host:
        return settings.ranks_per_host
    text = environment.get("SM_NUM_GPUS", "")
    if text:
        if not text.isdecimal():
            msg = f"SM_NUM_GPUS is a number; not {text[:80]!r}"
            raise ConfigError(msg)
        return max(1, int(text))
    return max(1, len(visible_gpus(environment, devices)))


def visible_gpus(environment: Mapping[str, str], devices: Path = _DEVICES) -> list[str]:
    """The GPUs that may be used here, as ``CUDA_VISIBLE_DEVICES`` names them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in {"", "-1"}]
    found = sum(bool(re.fullmatch(r"nvidia[0-9]+", entry.name)) for entry in os.scandir(devices))
    return [str(number) for number in range(found)]


def training(
    cluster: Cluster,
    settings: LaunchSettings,
    environment: Mapping[str, str],
    command: Sequence[str],
    *,
    address: str,
    coordinator: str,
    run_id: str,
) -> Child:
    """The training of this host, not started yet.

    Args:
        cluster: who is here.
        settings: how the run is launched.
        environment: its own.
        command: the script and its arguments.
        address: this host's.
        coordinator: where the samplers find it.
        run_id: the same on every host, so that all ranks find one job.
    """
    first = cluster.training_hosts[0]
    own = {**environment, "SUPER_COORDINATOR": coordinator}
    own.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", f"{max(1, int(settings.stop_wait_s) - 5)}")
    interface = cluster.interface or interface_of(address)  # torch's guess is what the host's name leads to
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if interface else ():
        own.setdefault(name, interface)
    ranks = ranks_here(settings, environment)
    if not settings.torchrun:
        own |= {
            "MASTER_ADDR": first,
            "MASTER_PORT": str(settings.master_port),
            "NNODES": str(len(cluster.training_hosts)),
            "NODE_RANK": str(cluster.node_rank),
            "NPROC_PER_NODE": str(ranks),
        }
        return Child("training", command, own, quiet=False)
    options = {
        "--nnodes": str(len(cluster.training_hosts)),
        "--node-rank": str(cluster.node_rank),
        "--nproc-per-node": str(ranks),
        "--rdzv-backend": "static",
        "--master-addr": first,
        "--master-port": str(settings.master_port),
        "--rdzv-id": run_id,
        "--local-addr": address,
    }
    words = [word for option in options.items() for word in option]
    program = [sys.executable, "-P", str(_TORCH_RUN)]
    return Child("training", [*program, *words, *_apart(command)], own, quiet=False)


def _apart(command: Sequence[str]) -> list[str]:
    """The command, where torchrun takes none of the script's options for its own, or their beginnings."""
    if command[0] == "-m":
        return ["-m", "--", *command[1:]]
    return ["--", *command]
