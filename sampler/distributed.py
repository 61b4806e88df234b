"""This process's rank, number of replicas and run id, and checks of torch.distributed and Accelerate."""

from __future__ import annotations

import gc
import os
import platform
import sys
import uuid

import torch.distributed

from superdl.super_wire.credentials import is_loopback
from superdl.super_wire.errors import ConfigError, UsageError

_NO_RUN_ID = "none"  # torchrun's literal for a missing rendezvous id

_run_ids: dict[int, str] = {}  # by process id, since a fork copies them


def rank_in_run(rank: int | None, num_replicas: int | None) -> tuple[int, int]:
    """Return the rank and the number of replicas.

    Arguments take precedence over torch.distributed, which takes precedence over ``RANK`` and
    ``WORLD_SIZE``. Raises ``ConfigError`` for an invalid value, or for several replicas without a rank.
    """
    if rank is None or num_replicas is None:
        detected = _rank_in_group() or _rank_in_environment(
            alone=num_replicas == 1, rank_given=rank is not None
        )
        rank = detected[0] if rank is None else rank
        num_replicas = detected[1] if num_replicas is None else num_replicas
    if num_replicas < 1:
        raise ConfigError(f"num_replicas must be at least 1, not {num_replicas}")
    if not 0 <= rank < num_replicas:
        raise ConfigError(f"rank must be from 0 to num_replicas - 1 = {num_replicas - 1}, not {rank}")
    return rank, num_replicas


def check_rank(rank: int, num_replicas: int, *, by_default: tuple[bool, bool]) -> None:
    """Raise ``UsageError`` if torch.distributed contradicts values that were not passed explicitly."""
    group = _rank_in_group()
    if group is None:
        return
    # Explicit arguments may differ, since ranks that share a model may all need the same samples.
    expected = tuple(
        detected if default else own
        for detected, own, default in zip(group, (rank, num_replicas), by_default, strict=True)
    )
    if expected != (rank, num_replicas):
        raise UsageError(
            f"this SuperSampler was created for rank {rank} of {num_replicas}, but torch.distributed reports "
            f"rank {group[0]} of {group[1]}. It was created before the process group, so ranks would read "
            "duplicate samples. Create it after init_process_group (with Lightning, in the "
            "train_dataloader() hook; with Accelerate, after Accelerator()), or pass rank= and num_replicas="
        )


def check_schedules(num_replicas: int) -> None:
    """Raise ``UsageError`` if Accelerate would step a schedule once per rank."""
    accelerate = sys.modules.get("accelerate.scheduler")
    # The length of Accelerate's loaders counts the batches of all ranks, that of SUPER's those of one.
    if num_replicas == 1 or accelerate is None:
        return
    # Accelerate keeps no list of its schedules, so look through all objects in the process.
    for candidate in gc.get_objects():
        if type(candidate) is not accelerate.AcceleratedScheduler:
            continue
        times = accelerate.AcceleratorState().num_processes
        if times > 1 and candidate.step_with_optimizer and not candidate.split_batches:
            raise UsageError(
                f"Accelerate would step the prepared {type(candidate.scheduler).__name__} {times} times per "
                f"batch, because it assumes that len(loader) counts the batches of all {times} ranks. With "
                "SUPER it counts those of one rank, so the schedule would end too early. Either use "
                "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True)), which steps it "
                "once, or do not pass the schedule to prepare() (docs/frameworks.md)"
            )


def _rank_in_group() -> tuple[int, int] | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def _rank_in_environment(*, alone: bool, rank_given: bool) -> tuple[int, int]:
    given = _number_from_environment("RANK", 0), _number_from_environment("WORLD_SIZE", 1)
    if given[1] > 1 and not (alone or rank_given or os.environ.get("RANK")):
        raise ConfigError(
            f"the environment variable WORLD_SIZE is {given[1]}, but RANK is not set and "
            "torch.distributed has no process group yet, so this process's rank is unknown. Create the "
            "SuperSampler after init_process_group (with Lightning, in the train_dataloader() hook), or pass "
            "rank= and num_replicas="
        )
    return given


def _number_from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name} must be an integer, not {text!r}") from None


def run_id() -> str:
    """Return torchelastic's run id, else ``MASTER_ADDR`` (or this host's name) and port, else a random id."""
    elastic = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic and elastic != _NO_RUN_ID:
        return f"elastic:{elastic}"
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if host and port:
        # On a single host, torchrun uses 127.0.0.1, which does not tell hosts apart.
        return f"master:{platform.node() if is_loopback(host) else host}:{port}"
    return _run_ids.setdefault(os.getpid(), f"process:{uuid.uuid4().hex}")


def is_own(run: str) -> bool:
    """Return whether a run consists of this process alone."""
    return run == _run_ids.get(os.getpid())
