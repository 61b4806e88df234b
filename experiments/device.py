"""Where a model is trained: picking the device, seeding everything, timing work that a device does later.

The loop itself is in `experiments.training`.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from superdl.experiments.ranks import Place

__all__ = ["ComputeSpan", "pick_device", "seed_everything", "synchronise"]


def pick_device(name: str, place: Place | None = None) -> torch.device:
    """Return the device that a spec names; ``auto`` is CUDA where there is one.

    With several ranks, each has the GPU of its number on its host.

    Raises:
        ConfigError: CUDA is asked for and not there, or a host has more ranks than GPUs.

    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch finds no CUDA device here; set device=auto or cpu")
    if name == "cpu" or place is None or place.replicas == 1:
        return torch.device(name)
    if place.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"rank {place.rank} is number {place.local_rank} of its host, which has "
            f"{torch.cuda.device_count()} GPU(s): start one rank for each (torchrun "
            "--nproc-per-node), or set device=cpu"
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, and have cuDNN choose the same kernels each time."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # code of the user's may draw from the global state
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class ComputeSpan:
    """The time of one piece of work: by events on CUDA, where work is only queued, else by the clock.

    Use as a context manager; on CUDA `seconds` may be asked for after `synchronise` only.
    """

    def __init__(self, device: torch.device) -> None:
        """Make a span on ``device``."""
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            self._events = (_timing_event(), _timing_event())
        self._start_s = self._stop_s = 0.0

    def __enter__(self) -> Self:
        """Start."""
        if self._events is not None:
            self._events[0].record()
        self._start_s = time.perf_counter()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop."""
        self._stop_s = time.perf_counter()
        if self._events is not None:
            self._events[1].record()

    def wait(self) -> None:
        """Wait until the device has done this work."""
        if self._events is not None:
            self._events[1].synchronize()

    @property
    def host_s(self) -> float:
        """How long the process that gave the work out was busy with it."""
        return self._stop_s - self._start_s

    @property
    def seconds(self) -> float:
        """How long the work took on the device."""
        if self._events is not None:
            return float(self._events[0].elapsed_time(self._events[1])) / 1000.0  # milliseconds
        return self.host_s


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
