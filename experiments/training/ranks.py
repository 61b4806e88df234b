"""The processes of one run: who this one is, what they tell one another, and how they end together.

`torchrun` and the launcher start them, with ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK``. Texts go through
torch's store, numbers through collectives, so that nothing from another process is unpickled. How gradients
are shared is left to `experiments.training.strategies`.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, rendezvous  # type: ignore[attr-defined]  # they are

from superdl.experiments.training.ending import FailureWatch
from superdl.super_wire.errors import ConfigError, SuperError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["OtherRankError", "ProcessRank", "Ranks", "join_ranks", "process_rank"]

_GROUP_TIMEOUT = timedelta(minutes=30)
"""For one collective: a rank may be writing a data set, or warming a cache, while others wait."""


class OtherRankError(SuperError):
    """Another rank failed first; the message has its reason."""


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """Which process of a run this is; ``local_rank`` counts those of this host."""

    rank: int = 0
    replicas: int = 1
    local_rank: int = 0


def process_rank(environ: dict[str, str] | os._Environ[str] = os.environ) -> ProcessRank:
    """Read the variables that torchrun sets; without them it is one process alone.

    Raises:
        ConfigError: a variable is no whole number, or the rank is not below the number of ranks.

    """
    rank, replicas = _number(environ, "RANK", 0), _number(environ, "WORLD_SIZE", 1)
    process = ProcessRank(rank, replicas, _number(environ, "LOCAL_RANK", rank))
    if not 0 <= process.rank < process.replicas or process.local_rank < 0:
        raise ConfigError(
            f"RANK={process.rank}, WORLD_SIZE={process.replicas} and LOCAL_RANK={process.local_rank} name no "
            "place in a run; start it with torchrun, or unset them"
        )
    return process


def _number(environ: dict[str, str] | os._Environ[str], name: str, default: int) -> int:
    text = environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ConfigError(f"the variable {name} is a whole number; not {text!r}") from None


class Ranks:
    """The ranks as one of them sees them; of a process alone, all of this costs nothing."""

    def __init__(
        self, process: ProcessRank, store: Store | None = None, watch: FailureWatch | None = None
    ) -> None:
        """Make what :func:`join_ranks` gives; ``store`` and ``watch`` are there where there are several."""
        self.process = process
        self._store = store
        self._watch = watch

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which prints and writes for all."""
        return self.process.rank == 0

    @property
    def several(self) -> bool:
        """Whether there is another."""
        return self.process.replicas > 1

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value, summed over ranks; the same on all."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def smallest(self, values: Sequence[float]) -> list[float]:
        """The smallest of each value over ranks."""
        return self._reduced(values, dist.ReduceOp.MIN)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        if self.several:
            self._reduced([0.0], dist.ReduceOp.SUM)

    def text_of_first(self, name: str, make: Callable[[], str]) -> str:
        """What ``make`` gives on rank 0, on every rank; ``name`` is used once in a run."""
        if self._store is None:
            return make()
        if self.leads:
            text = make()
            self._store.set(name, text)
            return text
        told: bytes = self._store.get(name)
        return told.decode()

    def bytes_of_first(self, content: bytes | None) -> bytes:
        """The bytes that rank 0 has, on every rank."""
        if not self.several:
            return content or b""
        (size,) = self.sums([float(len(content or b"")) if self.leads else 0.0])
        whole = (
            torch.frombuffer(bytearray(content or b""), dtype=torch.uint8)
            if self.leads and content
            else torch.empty(int(size), dtype=torch.uint8)
        )
        if size:
            dist.broadcast(whole, src=0)
        return whole.numpy().tobytes()

    def gathered(self, value: torch.Tensor) -> list[torch.Tensor]:
        """A tensor on the CPU of one shape and type, as each rank has it, by rank."""
        if not self.several:
            return [value]
        everyones = [torch.empty_like(value) for _ in range(self.process.replicas)]
        dist.all_gather(everyones, value)
        return everyones

    @contextlib.contextmanager
    def one_of_each_host_first(self) -> Iterator[None]:
        """Have the first rank of each host do what is within before the others, who find it done."""
        if self.several and self.process.local_rank > 0:
            self.barrier()
        yield
        if self.several and self.process.local_rank == 0:
            self.barrier()

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Have what is within, which waits for no rank, come to its end though another rank fails."""
        return contextlib.nullcontext() if self._watch is None else self._watch.writing()

    def _reduced(self, values: Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
        if not self.several:
            return [float(value) for value in values]
        together = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(together, op=how)
        return [float(value) for value in together]


@contextlib.contextmanager
def join_ranks(process: ProcessRank, device: torch.device, *, alone: bool = False) -> Iterator[Ranks]:
    """Join the other ranks, by gloo for the CPU and NCCL for CUDA; leave them at the end.

    A rank whose block fails tells the others why; theirs then fail with an :class:`OtherRankError`, and a
    process that cannot even do that, since it waits in a collective for the one that is gone, is ended.

    Args:
        process: this one.
        device: that it computes on.
        alone: make a group for a process alone too; FSDP needs one.

    Raises:
        ConfigError: the group cannot be made.
        OtherRankError: another rank failed first.

    """
    if process.replicas == 1:
        with _group_of_one(device) if alone else contextlib.nullcontext():
            yield Ranks(process)
        return
    store, watch = _join(process, device)
    try:
        yield Ranks(process, store, watch)
        dist.destroy_process_group()  # not after a failure: it could wait for a rank that is gone
    except Exception as error:
        first = watch.tell(f"{type(error).__name__}: {error}".removesuffix(": "))
        if first is not None:
            raise OtherRankError(first) from error
        raise
    except BaseException as error:  # an interrupt is no failure, but torchrun interrupts the others after one
        first = watch.told()
        if first is not None:
            raise OtherRankError(first) from error
        raise
    finally:
        watch.stop()


def _backend(device: torch.device) -> str:
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _join(process: ProcessRank, device: torch.device) -> tuple[Store, FailureWatch]:
    try:
        store, rank, replicas = next(rendezvous("env://", timeout=_GROUP_TIMEOUT))
        attempt = PrefixStore(f"superdl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(
            _backend(device),
            store=PrefixStore("group", attempt),
            rank=rank,
            world_size=replicas,
            timeout=_GROUP_TIMEOUT,
        )
        watch = FailureWatch(process.rank)
        watch.start()
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"rank {process.rank} of {process.replicas} could not join the others: {error}; start the run "
            "with torchrun, which sets MASTER_ADDR and MASTER_PORT"
        ) from error
    return PrefixStore("texts", attempt), watch


@contextlib.contextmanager
def _group_of_one(device: torch.device) -> Iterator[None]:
    dist.init_process_group(_backend(device), store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
