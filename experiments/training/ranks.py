"""The processes of one run: their identity, communication, and joint end.

`torchrun` or the launcher starts them, with ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK``. All communication is
collectives of plain tensors, so that nothing from another process is unpickled.

The rank that fails first stores its reason in torch's store. A thread of each other rank polls the store,
over a separate connection, and ends a process that waits in vain. On SIGTERM, which clusters send before
taking a machine, all ranks stop after the same step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # they are

from superdl.super_wire.errors import ConfigError, SuperError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

__all__ = [
    "FailureWatch",
    "OtherRankError",
    "ProcessRank",
    "Ranks",
    "StopRequest",
    "Terminated",
    "join_ranks",
    "process_rank",
]

_GROUP_TIMEOUT = timedelta(minutes=30)
"""Limit for one collective: a rank may be writing a data set, or warming a cache, while others wait."""


class OtherRankError(SuperError):
    """Another rank failed first; the message has its reason."""


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """This process's place in a run; ``local_rank`` counts those of this host."""

    rank: int = 0
    replicas: int = 1
    local_rank: int = 0


def process_rank(environ: Mapping[str, str] = os.environ) -> ProcessRank:
    """Read the variables that torchrun sets; without them, return a single process.

    Raises:
        ConfigError: the variables are not a valid place in a run.
    """
    rank, replicas = environ.get("RANK") or "0", environ.get("WORLD_SIZE") or "1"
    local_rank = environ.get("LOCAL_RANK") or rank
    with contextlib.suppress(ValueError):
        process = ProcessRank(int(rank), int(replicas), int(local_rank))
        if 0 <= process.rank < process.replicas and process.local_rank >= 0:
            return process
    raise ConfigError(
        f"RANK={rank}, WORLD_SIZE={replicas} and LOCAL_RANK={local_rank} name no place in a run; start it "
        "with torchrun, or unset them"
    )


class Ranks:
    """Collectives among the ranks, for one of them; free for a process alone."""

    def __init__(self, process: ProcessRank) -> None:
        """Wrap a process; use :func:`join_ranks`."""
        self.process = process

    @property
    def leads(self) -> bool:
        """True on rank 0, which prints and writes for all."""
        return self.process.rank == 0

    @property
    def several(self) -> bool:
        """True if there are other ranks."""
        return self.process.replicas > 1

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return each value summed over ranks; the same on all."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the largest of each value over ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def smallest(self, values: Sequence[float]) -> list[float]:
        """Return the smallest of each value over ranks."""
        return self._reduced(values, dist.ReduceOp.MIN)

    def _reduced(self, values: Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
        together = torch.tensor(values, dtype=torch.float64)
        if self.several:
            dist.all_reduce(together, op=how)
        return [float(value) for value in together]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.sums([0.0])

    def text_of_first(self, make: Callable[[], str]) -> str:
        """Return ``make()`` of rank 0 on every rank."""
        return self.bytes_of_first(make().encode() if self.leads else None).decode()

    def bytes_of_first(self, content: bytes | None) -> bytes:
        """Return rank 0's bytes on every rank."""
        if not self.several:
            return content or b""
        own = bytearray(content or b"")
        (size,) = self.largest([float(len(own)) if self.leads else 0.0])
        if not self.leads:
            own = bytearray(int(size))
        if size:
            # The tensor shares memory with `own`, which the broadcast fills.
            dist.broadcast(torch.frombuffer(own, dtype=torch.uint8), src=0)
        return bytes(own)

    def gathered(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Gather a CPU tensor from each rank, all of one shape and type, in rank order."""
        if not self.several:
            return [value]
        everyones = [torch.empty_like(value) for _ in range(self.process.replicas)]
        dist.all_gather(everyones, value)
        return everyones

    @contextlib.contextmanager
    def one_of_each_host_first(self) -> Iterator[None]:
        """Let the first rank of each host run the block before the host's other ranks."""
        if self.several and self.process.local_rank > 0:
            self.barrier()
        yield
        if self.several and self.process.local_rank == 0:
            self.barrier()


@contextlib.contextmanager
def join_ranks(
    process: ProcessRank, device: torch.device, *, alone: bool = False, group: str = ""
) -> Iterator[Ranks]:
    """Join the other ranks, by gloo for the CPU and NCCL for CUDA; leave them at the end.

    A rank whose block fails reports the reason to the others, which then raise :class:`OtherRankError`. A
    process that waits in a collective for the failed rank is ended.

    Args:
        process: this one.
        device: the device it computes on.
        alone: make a group for a single process too; FSDP needs one.
        group: a name, for a group of processes started by ranks; they meet through the ranks' store.

    Raises:
        ConfigError: the group cannot be made.
        OtherRankError: another rank failed first.
    """
    if process.replicas == 1:
        if not alone:
            yield Ranks(process)
            return
        # A store in memory needs no port.
        dist.init_process_group(_backend(device), store=HashStore(), rank=0, world_size=1)
        try:
            yield Ranks(process)
        finally:
            dist.destroy_process_group()
        return
    watch = FailureWatch(process.rank, group)
    try:
        dist.init_process_group(
            _backend(device),
            timeout=_GROUP_TIMEOUT,
            store=_store_of(group) if group else None,
            rank=process.rank if group else -1,  # else from the environment
            world_size=process.replicas if group else -1,
        )
        watch.start()
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"rank {process.rank} of {process.replicas} could not join the others: {error}; start the run "
            "with torchrun, which sets MASTER_ADDR and MASTER_PORT"
        ) from error
    try:
        yield Ranks(process)
        dist.destroy_process_group()  # not after a failure: it could wait for a failed rank
    except BaseException as error:
        # torchrun interrupts the other ranks after a failure.
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        first = watch.tell(reason) if isinstance(error, Exception) else watch.told()
        if first is not None:
            raise OtherRankError(first) from error
        raise
    finally:
        watch.stop()


def _backend(device: torch.device) -> str:
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


# ------------------------------------------------------------------------------------ ending together

_KEY = "failure"
_LOOK_EVERY_S = 1.0
_GRACE_S = 10.0
"""Time for a rank to fail on its own, since its collective has broken, and to write its report."""
_STORE_TIMEOUT = timedelta(seconds=20)
_EXIT_CODE = 1


def _store_of(group: str) -> Store:
    """Connect to the ranks' store separately, with a key prefix for the group."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT)
    # After a restart by torchrun, earlier failures must not count.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"superdl/{attempt}/{group}".rstrip("/"), store)


class FailureWatch:
    """A thread that watches for another rank's failure."""

    def __init__(self, rank: int, group: str = "") -> None:
        """Prepare to watch for ``rank`` of a ``group``; it connects when started."""
        self._rank = rank
        self._group = group
        self._stopped = threading.Event()
        self._store: Store | None = None
        self._thread = threading.Thread(target=self._run, name="superdl-ranks", daemon=True)

    def start(self) -> None:
        """Start watching; the group must exist, and so its store."""
        self._store = _store_of(self._group)
        self._thread.start()

    def tell(self, reason: str) -> str | None:
        """Report that this rank failed; return None if it is the first, else the first's reason."""
        mine = f"rank {self._rank} failed: {reason}"
        if self._store is not None:
            with contextlib.suppress(RuntimeError):  # the store ended with rank 0
                # Only the first rank sets the key; the others then read its reason.
                self._store.compare_set(_KEY, "", mine)
        first = self.told()
        return None if first == mine else first

    def told(self) -> str | None:
        """Return the first failed rank's reason; None without one, or without the store."""
        with contextlib.suppress(RuntimeError):
            return self._failure()
        return None

    def _failure(self) -> str | None:
        if self._store is None or not self._store.check([_KEY]):
            return None
        return bytes(self._store.get(_KEY)).decode()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        reason = None
        while reason is None:
            if self._stopped.wait(_LOOK_EVERY_S):
                return
            try:
                reason = self._failure()
            except RuntimeError as error:
                reason = f"the store of the ranks has gone ({error})"
        if not self._stopped.wait(_GRACE_S):
            sys.stderr.write(f"superdl: rank {self._rank} ends, since {reason}\n")
            sys.stderr.flush()
            os._exit(_EXIT_CODE)  # nothing interrupts the main thread's collective


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""

    def __init__(self) -> None:
        """Set the message."""
        super().__init__("the process was asked to end (SIGTERM)")


class StopRequest:
    """Handles SIGTERM, and agrees with the other ranks on the last step.

    Use as a context manager around the whole run; outside of training the signal ends it at once, and a
    second signal always does.
    """

    def __init__(self, *, several: bool = False) -> None:
        """Start without a request, on a single rank or one of ``several``."""
        self._several = several
        self._training = False
        self._asked = False
        self._flag = torch.zeros(1)
        self._pending: Any = None
        self._before: Any = None
        self._child_before: Any = None

    def __enter__(self) -> Self:
        """Install the handler, if in the main thread; other threads cannot handle signals."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Restore the previous handlers."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        if self._child_before is not None:
            signal.signal(signal.SIGCHLD, self._child_before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as Python calls it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second SIGTERM ends the process at once
        if not self._training:
            raise Terminated
        self._asked = True
        # A worker killed by the same signal must not raise, by torch's handler, in the last step or while its
        # checkpoint is written; a batch that can no longer come still raises when it is waited for.
        if self._child_before is None:
            self._child_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def begin(self) -> None:
        """Begin training: from now on SIGTERM stops after a step."""
        self._training = True

    def end(self) -> None:
        """End training, after the last exchange with the other ranks."""
        self._training = False
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def due(self) -> bool:
        """Check after each step whether to stop now; the answer is the same on all ranks.

        With several ranks it is the answer to the previous step's request, which has arrived meanwhile.
        """
        if not self._several:
            return self._asked
        if self._pending is not None:
            self._pending.wait()
            if self._flag.item() > 0:
                self._pending = None
                return True
        self._flag.fill_(float(self._asked))
        self._pending = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, async_op=True)
        return False
