"""The ranks of a run: their environment, their collectives, and stopping together on SIGTERM."""

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

# Bounds one collective. A rank may be writing a data set or warming a cache while others wait.
_GROUP_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """This process's rank in a run. ``local_rank`` is its rank among the processes of this host."""

    rank: int = 0
    replicas: int = 1
    local_rank: int = 0


def process_rank(environ: Mapping[str, str] = os.environ) -> ProcessRank:
    """Read the variables set by torchrun. Without them, the process is the only rank.

    Raises:
        ConfigError: the variables do not describe a valid rank.
    """
    rank, replicas = environ.get("RANK") or "0", environ.get("WORLD_SIZE") or "1"
    local_rank = environ.get("LOCAL_RANK") or rank
    with contextlib.suppress(ValueError):
        process = ProcessRank(int(rank), int(replicas), int(local_rank))
        if 0 <= process.rank < process.replicas and process.local_rank >= 0:
            return process
    raise ConfigError(
        f"RANK={rank}, WORLD_SIZE={replicas} and LOCAL_RANK={local_rank} do not describe a rank. Start the "
        "run with torchrun, or unset them."
    )


class Ranks:
    """This rank's collectives, which do nothing in a single process. See `join_ranks`."""

    def __init__(self, process: ProcessRank) -> None:
        self.process = process

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which prints and writes for all ranks."""
        return self.process.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self.process.replicas > 1

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sum of each value over ranks. All ranks get the same result."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the maximum of each value over ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def smallest(self, values: Sequence[float]) -> list[float]:
        """Return the minimum of each value over ranks."""
        return self._reduced(values, dist.ReduceOp.MIN)

    def _reduced(self, values: Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
        # Tensors, because object collectives unpickle what other processes send.
        reduced = torch.tensor(values, dtype=torch.float64)
        if self.several:
            dist.all_reduce(reduced, op=how)
        return [float(value) for value in reduced]

    def barrier(self) -> None:
        """Wait until all ranks have arrived."""
        self.sums([0.0])

    def text_of_first(self, make: Callable[[], str]) -> str:
        """Call ``make()`` on rank 0 only, and return its result on every rank."""
        return self.bytes_of_first(make().encode() if self.leads else None).decode()

    def bytes_of_first(self, content: bytes | None) -> bytes:
        """Return rank 0's bytes on every rank."""
        if not self.several:
            return content or b""
        own = bytearray(content or b"")
        # Other ranks need the size to allocate a buffer for the broadcast.
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
    """Join the other ranks, with gloo on CPUs and NCCL on CUDA, for the duration of the block.

    If a rank fails, the others exit when torchrun ends them or their connection to it breaks.
    ``alone`` creates a group even for a single process, as FSDP requires.

    Raises:
        ConfigError: the group cannot be created.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if process.replicas == 1:
        if alone:  # a store in memory, which needs no port
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
            f"rank {process.rank} of {process.replicas} cannot join the others: {error}. Start the run with "
            "torchrun, which sets MASTER_ADDR and MASTER_PORT."
        ) from error
    yield Ranks(process)
    dist.destroy_process_group()  # not after an error, when it could wait for a failed rank


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""

    def __init__(self) -> None:
        super().__init__("the process received SIGTERM")


class StopRequest:
    """A context manager that handles SIGTERM for the duration of a run.

    During training, the signal stops all ranks after the same step. Otherwise it ends the run at once, and
    so does a second signal at any time.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._training = self._requested = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Python handles signals only in the main thread.
        if threading.current_thread() is threading.main_thread():
            self._handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: installed outside Python

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # a handler's signature
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second SIGTERM ends the process at once
        if not self._training:
            raise Terminated
        # Clusters send SIGTERM before they take a machine away, which leaves time to finish the step.
        self._requested = True
        # The signal may also kill workers, for which torch's SIGCHLD handler would raise in the last step or
        # while its checkpoint is written. Waiting for a batch that no worker can deliver still raises.
        self._handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def begin(self) -> None:
        """Mark the start of training. From then on, SIGTERM stops training after the current step."""
        self._training = True

    def end(self) -> None:
        """Mark the end of training."""
        self._training = False

    def due(self) -> bool:
        """Return whether to stop after this step. All ranks must call this, and they get the same result."""
        return self._ranks.largest([float(self._requested)])[0] > 0
