"""Memory for batches, and their transfer to a device."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import get_worker_info

from superdl.super_dataset.memory.handover import WorkerMemory
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_ALIGNMENT = 64  # bytes; a multiple of every dtype's size


class Memory(Protocol):
    """Allocator for batches. If memory is ``shared`` with other processes, use one block per batch."""

    shared: bool

    def take(self, size: int) -> torch.Tensor:
        """Return uninitialised uint8 memory of shape (size,) that belongs to the caller."""


class PinnedMemory:
    """Page-locked memory. torch keeps it allocated until copies to the device have finished."""

    shared = False

    def take(self, size: int) -> torch.Tensor:
        """See :class:`Memory`. Raises ``RuntimeError`` without an accelerator."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class RecycledMemory:
    """Memory that is reused once unreferenced. Keeps up to ``idle_blocks`` unused blocks. Thread-safe."""

    shared = False

    def __init__(self, idle_blocks: int = 4) -> None:
        # A deque, whose appends and pops are atomic. Memory may return in a garbage collection within take(),
        # where a lock would already be held.
        self._idle: deque[NDArray[np.uint8]] = deque(maxlen=idle_blocks)

    def take(self, size: int) -> torch.Tensor:
        """See :class:`Memory`."""
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        # Each page of fresh memory costs a page fault, which takes longer than receiving into it.
        block = self._idle_block(size)
        # The tensor's storage keeps this array alive, and so do all tensors, views and arrays derived from
        # it. Once the array is gone, all of them are.
        lent = np.frombuffer(block.data, dtype=np.uint8, count=size)
        weakref.finalize(lent, self._idle.append, block).atexit = False
        return torch.from_numpy(lent)

    def _idle_block(self, size: int) -> NDArray[np.uint8]:
        while True:
            try:
                block = self._idle.pop()  # the latest may still be in the CPU cache
            except IndexError:
                return np.empty(size, dtype=np.uint8)  # numpy requests huge pages where torch does not
            if size <= block.nbytes:
                return block


_RECYCLED = RecycledMemory()
_SHARED = WorkerMemory()
_chosen = threading.local()


def memory_here() -> Memory:
    """Return this thread's allocator, by default shared memory in a worker and recycled memory elsewhere."""
    chosen: Memory | None = getattr(_chosen, "memory", None)
    if chosen is not None:
        return chosen
    return _RECYCLED if get_worker_info() is None else _SHARED


@contextmanager
def receiving_into(memory: Memory, *, finished_elsewhere: bool = False) -> Iterator[None]:
    """Receive this thread's batches into ``memory``, as ``Unfinished`` items if ``finished_elsewhere``."""
    before = getattr(_chosen, "memory", None), finished_elsewhere_here()
    _chosen.memory, _chosen.elsewhere = memory, finished_elsewhere
    try:
        yield
    finally:
        _chosen.memory, _chosen.elsewhere = before


def finished_elsewhere_here() -> bool:
    """Return this thread's ``finished_elsewhere`` flag, as set by :func:`receiving_into`."""
    return bool(getattr(_chosen, "elsewhere", False))


def empty_batch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return an uninitialised tensor. On the CPU, it comes from this thread's allocator."""
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    flat = memory_here().take(math.prod(shape) * dtype.itemsize)
    return flat.view(dtype).view(shape)


def in_one_block(tensors: Sequence[torch.Tensor], memory: Memory) -> list[torch.Tensor]:
    """Return the tensors, copied into one block if the memory is shared."""
    if not memory.shared:
        return list(tensors)
    # Each block costs a file descriptor.
    flats = cut_up(memory, [tensor.nbytes for tensor in tensors])
    parts = [flat.view(tensor.dtype).view(tensor.shape) for flat, tensor in zip(flats, tensors, strict=True)]
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor)
    return parts


def cut_up(memory: Memory, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Cut one new block into tensors of the given ``sizes`` in bytes, each aligned for any dtype."""
    rounded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    starts = list(accumulate(rounded, initial=0))
    block = memory.take(starts.pop())
    return [block[start : start + size] for start, size in zip(starts, sizes, strict=True)]


class Unfinished(NamedTuple):
    """A batch to complete at its destination, where ``finish`` turns it into the loader's item."""

    images: torch.Tensor
    finish: Callable[[torch.Tensor], torch.Tensor]


class Mover:
    """Moves batches to their destination. This base class leaves them on the CPU."""

    # Whether send() accepts an Unfinished, which is cheaper to move.
    finishes = False
    # Whether to receive into page-locked memory, which is copied in the background.
    pins = False

    def __init__(self) -> None:
        # The memory to receive batches into.
        self.memory: Memory = RecycledMemory()

    def send(self, item: Any) -> Any:
        """Start moving all tensors of an item. Called in the thread that read it."""
        return item

    def receive(self, sent: Any) -> Any:
        """Return an item sent with :meth:`send`, ready for use on this thread's current stream."""
        return sent


def mover_to(device: torch.device | str | int | None) -> Mover:
    """Return the mover for a device. Raises ``ConfigError`` if the device is not available."""
    if device is None:
        return Mover()
    try:
        target = torch.device(device)
        if target.type == "cpu":
            return Mover()
        if target.type == "cuda":
            return _CudaStream(target)
        # torch.device accepts devices that this machine lacks, but an allocation does not.
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"device={device!r} is not available: {error}") from error
    return _Copy(target)


class _Copy(Mover):
    finishes = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def send(self, item: Any) -> Any:
        return map_tensors(item, lambda tensor: tensor.to(self._device))


@dataclass(frozen=True, slots=True)
class _Sent:
    item: Any
    copied: torch.cuda.Event


class _CudaStream(Mover):
    finishes = pins = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        # torch's pinned allocator waits for copies. A buffer of our own could be overwritten too early.
        self.memory = PinnedMemory()
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        # Items being copied, to keep their memory alive.
        self._copying: deque[_Sent] = deque()
        self._lock = threading.Lock()
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def send(self, item: Any) -> Any:
        source_stream = torch.cuda.current_stream(self._device)

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type == "cuda":
                self._stream.wait_stream(source_stream)  # the transform may still be running there
            elif not tensor.is_pinned():
                tensor = tensor.pin_memory()
            return tensor.to(self._device, non_blocking=True)

        with torch.cuda.stream(self._stream):
            moved = map_tensors(item, copy)
            copied = self._stream.record_event()
        with self._lock:
            self._copying.append(_Sent(item, copied))
            while self._copying and self._copying[0].copied.query():  # type: ignore[no-untyped-call]
                self._copying.popleft()
        return _Sent(moved, copied)

    def receive(self, sent: Any) -> Any:
        using = torch.cuda.current_stream(self._device)
        using.wait_event(sent.copied)  # waits on the device; this thread continues

        def note_use(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(using)  # its memory could be reused too early otherwise
            return tensor

        return map_tensors(sent.item, note_use)


def map_tensors(item: Any, change: Callable[[torch.Tensor], torch.Tensor], *, finish: bool = True) -> Any:
    """Apply ``change`` to every tensor of an item, including those in tuples, lists and mappings."""
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, Unfinished) and finish:
        return item.finish(change(item.images))
    if isinstance(item, Mapping):
        changed = {key: map_tensors(value, change, finish=finish) for key, value in item.items()}
        return as_type_of(item, changed)
    if isinstance(item, tuple | list):
        return as_type_of(item, [map_tensors(value, change, finish=finish) for value in item])
    return item


def as_type_of(item: Any, changed: Any) -> Any:
    """Convert ``changed`` to the type of ``item`` if possible."""
    if hasattr(item, "_fields"):
        return type(item)(*changed)
    make: Any = type(item)
    try:
        return make(changed)
    except TypeError:
        return changed
