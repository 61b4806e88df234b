"""Where a model is trained: picking the device, seeding everything, timing work that a device does later.

The loop itself is in `experiments.training`.
"""

from __future__ import annotations

import random
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Self

import numpy as np
import torch

from super_wire.errors import ConfigError

__all__ = ["ComputeSpan", "autocast", "pick_device", "seed_everything", "synchronise"]


def pick_device(name: str) -> torch.device:
    """Return the device that a spec names; ``auto`` is CUDA where there is one.

    Raises:
        ConfigError: CUDA is asked for and not there.

    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch finds no CUDA device here; set device=auto or cpu")
    return torch.device(name)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, and have cuDNN choose the same kernels each time."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # code of the user's may draw from the global state
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return bf16 autocast on CUDA; on a CPU, where it slows a small model down, nothing."""
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


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
