"""The processes of one run: their identity, their communication, and how they end together."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # it is

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

# Limit for one collective: a rank may be writing a data set, or warming a cache, while others wait.
_GROUP_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """The place of this process in a run. ``local_rank`` counts the processes of this host."""

    rank: int = 0
    replicas: int = 1
    local_rank: int = 0


def process_rank(environ: Mapping[str, str] = os.environ) -> ProcessRank:
    """Read the variables that torchrun sets, or return a single process without them.

    Raises:
        ConfigError: the variables do not describe a valid place in a run.
    """
    rank, replicas = environ.get("RANK") or "0", environ.get("WORLD_SIZE") or "1"
    local_rank = environ.get("LOCAL_RANK") or rank
    with contextlib.suppress(ValueError):
        process = ProcessRank(int(rank), int(replicas), int(local_rank))
        if 0 <= process.rank < process.replicas and process.local_rank >= 0:
            return process
    raise ConfigError(
        f"RANK={rank}, WORLD_SIZE={replicas} and LOCAL_RANK={local_rank} are not valid for a run; "
        "start it with torchrun, or unset them"
    )


class Ranks:
    """Collectives for one of the ranks, which cost a single process nothing. See `join_ranks`."""

    def __init__(self, process: ProcessRank) -> None:
        self.process = process

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which prints and writes for all."""
        return self.process.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self.process.replicas > 1

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return each value summed over ranks, the same on all of them."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the maximum of each value over ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def smallest(self, values: Sequence[float]) -> list[float]:
        """Return the minimum of each value over ranks."""
        return self._reduced(values, dist.ReduceOp.MIN)

    def _reduced(self, values: Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
        # Plain tensors only, so that nothing from another process is unpickled.
        together = torch.tensor(values, dtype=torch.float64)
        if self.several:
            dist.all_reduce(together, op=how)
        return [float(value) for value in together]

    def barrier(self) -> None:
        """Wait until all ranks have arrived."""
        self.sums([0.0])

    def text_of_first(self, make: Callable[[], str]) -> str:
        """Return rank 0's result of ``make()`` on every rank."""
        return self.bytes_of_first(make().encode() if self.leads else None).decode()

    def bytes_of_first(self, content: bytes | None) -> bytes:
        """Return rank 0's bytes on every rank."""
        if not self.several:
            return content or b""
        own = bytearray(content or b"")
        # All ranks must know the size before the broadcast.
        (size,) = self.largest([float(len(own)) if self.leads else 0.0])
        if not self.leads:
            own = bytearray(int(size))
        if size:
            # The tensor shares memory with `own`, which the broadcast fills.
            dist.broadcast(torch.frombuffer(own, dtype=torch.uint8), src=0)
        return bytes(own)

    @contextlib.contextmanager
    def one_of_each_host_first(self) -> Iterator[None]:
        """Let the first rank of each host run the block before the host's other ranks."""
        if self.several and self.process.local_rank > 0:
            self.barrier()
        yield
        if self.several and self.process.local_rank == 0:
            self.barrier()


@contextlib.contextmanager
def join_ranks(process: ProcessRank, device: torch.device, *, alone: bool = False) -> Iterator[Ranks]:
    """Join the other ranks, with gloo for the CPU and NCCL for CUDA, and leave them at the end.

    If a rank fails, the others end when torchrun ends them or their connection to it breaks.
    ``alone`` makes a group for a single process too; FSDP needs one.

    Raises:
        ConfigError: the group cannot be created.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if process.replicas == 1:
        if alone:  # a store in memory needs no port
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        try:
            yield Ranks(process)
        finally:
            if alone:
                dist.destroy_process_group()
        return
    try:
        dist.init_process_group(backend, timeout=_GROUP_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"rank {process.rank} of {process.replicas} could not join the others: {error}; start the run "
            "with torchrun, which sets MASTER_ADDR and MASTER_PORT"
        ) from error
    yield Ranks(process)
    dist.destroy_process_group()  # not after a failure: it could wait for a failed rank


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""

    def __init__(self) -> None:
        super().__init__("the process was asked to stop (SIGTERM)")


class StopRequest:
    """Handle SIGTERM, and agree with the other ranks on the last step.

    Use as a context manager around the whole run. Outside of training, the signal ends the run at
    once, and a second signal always does.
    """

    def __init__(self, *, several: bool = False) -> None:
        self._several = several
        self._training = self._requested = False
        self._flag = torch.zeros(1)
        self._pending: Any = None
        self._before: Any = None
        self._child_before: Any = None

    def __enter__(self) -> Self:
        # Other threads cannot handle signals.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        if self._child_before is not None:
            signal.signal(signal.SIGCHLD, self._child_before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as Python calls it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second SIGTERM ends the process at once
        if not self._training:
            raise Terminated
        # Clusters send SIGTERM before taking a machine: finish the step first.
        self._requested = True
        # A worker killed by the same signal must not raise, by torch's handler, in the last step or while its
        # checkpoint is written; a batch that can no longer come still raises when it is waited for.
        if self._child_before is None:
            self._child_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def begin(self) -> None:
        """Mark training as started. From now on, SIGTERM stops it after the current step."""
        self._training = True

    def end(self) -> None:
        """End training, after the last exchange with the other ranks."""
        self._training = False
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def due(self) -> bool:
        """Check after each step whether to stop now. The answer is the same on all ranks."""
        if not self._several:
            return self._requested
        # The answer to the previous step's request, which has arrived meanwhile.
        if self._pending is not None:
            self._pending.wait()
            if self._flag.item() > 0:
                self._pending = None
                return True
        self._flag.fill_(float(self._requested))
        self._pending = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, async_op=True)
        return False
