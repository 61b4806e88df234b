"""Takes training steps of made-up images, to see how much memory they take, on a GPU or in a child process.

``python -m superdl.experiments.training.memory_probe JSON`` is the child: it reads sizes, a line each, and
answers each with a line, the peak of its resident memory in bytes. The search is left to
`experiments.training.batch_size`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch.nn.functional import cross_entropy

from superdl.experiments.models import build_model
from superdl.experiments.training.batch_size import TriedBatch
from superdl.experiments.training.precision import autocast, compute_type
from superdl.sampler.embedded.host import available_memory_bytes
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["CpuProbe", "CudaProbe", "StepShape"]

_SHARE = 0.8
"""Of the memory that is free, for the step: the rest is the loader's, and what else the trainer does."""
_PEAK_UNIT_BYTES = 1024 if sys.platform != "darwin" else 1
_MARGIN = 1.1  # reckoned sizes are rounded up by it
_END_TIMEOUT_S = 10.0
_POINTS = 2


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step's memory depends on, but for the size of the batch."""

    model: str
    classes: int
    side: int
    precision: str
    threads: int | None


class _Steps:
    """A model that takes steps of random images."""

    def __init__(self, shape: StepShape, device: torch.device) -> None:
        self._shape = shape
        self._device = device
        self._dtype = compute_type(shape.precision, device)
        self._model = build_model(shape.model, shape.classes, device, side=shape.side).train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-6)

    def take(self, batch_size: int) -> None:
        side = self._shape.side
        images = torch.randint(0, 256, (batch_size, 3, side, side), dtype=torch.uint8)
        images = images.to(self._device).contiguous(memory_format=torch.channels_last)
        labels = torch.randint(0, self._shape.classes, (batch_size,)).to(self._device)
        with autocast(self._device, self._dtype):
            loss = cross_entropy(self._model(images), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._optimizer.step()


class CudaProbe:
    """Tries on a GPU, in this process."""

    def __init__(self, shape: StepShape, device: torch.device) -> None:
        """Make the model on ``device``."""
        self._device = device
        self.device = torch.cuda.get_device_name(device)
        self.limit_bytes = torch.cuda.mem_get_info(device)[0]
        self._steps = _Steps(shape, device)

    def __enter__(self) -> Self:
        """Nothing is to be opened."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the memory back."""
        del self._steps
        torch.cuda.empty_cache()

    def try_size(self, batch_size: int) -> TriedBatch:
        """Take two steps: the optimiser's state comes with the first."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        try:
            for _ in range(2):
                self._steps.take(batch_size)
            torch.cuda.synchronize(self._device)
        except torch.OutOfMemoryError:
            return TriedBatch(batch_size, fits=False, memory_bytes=None, measured=True)
        peak = torch.cuda.max_memory_reserved(self._device)
        return TriedBatch(batch_size, fits=True, memory_bytes=peak, measured=True)


class CpuProbe:
    """Tries in a child process, whose steps are kept below the share of the memory that is free now."""

    device = "cpu"

    def __init__(self, shape: StepShape, *, share_of: int = 1, limit_bytes: int | None = None) -> None:
        """Start the child; ``share_of`` processes of this host share its memory."""
        free = available_memory_bytes() if limit_bytes is None else limit_bytes
        self.limit_bytes = limit_bytes or int(_SHARE * free / share_of)
        self._measured: list[tuple[int, int]] = []
        self._shape = shape
        self._largest = 0  # that this child has been asked for
        self._child = _child(shape)

    def __enter__(self) -> Self:
        """Use it as a context manager, which ends the child."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the child."""
        self._end()

    def _end(self) -> None:
        self._child.kill()
        self._child.communicate(timeout=_END_TIMEOUT_S)

    def try_size(self, batch_size: int) -> TriedBatch:
        """Take a step, unless those before say that it would not fit; memory grows with the batch."""
        reckoned = self._reckoned(batch_size)
        if reckoned is not None and reckoned > self.limit_bytes:
            return TriedBatch(batch_size, fits=False, memory_bytes=reckoned, measured=False)
        if batch_size < self._largest:  # a process keeps its peak: another one has not had it yet
            self._end()
            self._child, self._largest = _child(self._shape), 0
        self._largest = batch_size
        peak = self._ask(batch_size)
        self._measured.append((batch_size, peak))
        return TriedBatch(batch_size, fits=peak <= self.limit_bytes, memory_bytes=peak, measured=True)

    def _reckoned(self, batch_size: int) -> int | None:
        """What a larger batch than those measured would take, on the line through the last two."""
        grown: list[tuple[int, int]] = []
        for size, peak in sorted(self._measured):
            if not grown or peak > grown[-1][1]:
                grown.append((size, peak))
        if len(grown) < _POINTS or batch_size <= grown[-1][0]:
            return None
        (size, peak), (larger, its_peak) = grown[-2:]
        return int(its_peak + _MARGIN * (its_peak - peak) / (larger - size) * (batch_size - larger))

    def _ask(self, batch_size: int) -> int:
        """The peak of the child after a step of this size."""
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("the child was started with pipes")
        try:
            self._child.stdin.write(f"{batch_size}\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.strip():
            code = self._child.wait(_END_TIMEOUT_S)
            raise ConfigError(
                f"the process that tried a batch of {batch_size} ended with code {code}; what it said is "
                "above (-9: the machine ran out of memory)"
            )
        return int(line)


def _peak_bytes() -> int:
    """The most memory that this process has had; Linux counts its parent's too, but not in ``VmHWM``."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT_BYTES
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _child(shape: StepShape) -> subprocess.Popen[str]:
    return subprocess.Popen(  # our own program
        [sys.executable, "-P", "-m", "superdl.experiments.training.memory_probe", json.dumps(asdict(shape))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _serve(shape: StepShape) -> None:
    """Be the child: take the steps that are asked for and tell the peak after each."""
    if shape.threads is not None:
        torch.set_num_threads(shape.threads)
    steps = _Steps(shape, torch.device("cpu"))
    steps.take(1)  # the optimiser's state comes with the first step
    for line in sys.stdin:
        steps.take(int(line))
        peak = _peak_bytes()
        sys.stdout.write(f"{peak}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve(StepShape(**json.loads(sys.argv[1])))
