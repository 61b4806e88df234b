"""The transfer of batches to a device."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from superdl.super_dataset.memory.batch_memory import PinnedMemory, RecycledMemory
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from superdl.super_dataset.memory.batch_memory import Memory


class Unfinished(NamedTuple):
    """A batch in transit; at its destination ``finish`` makes it the loader's item."""

    images: torch.Tensor
    finish: Callable[[torch.Tensor], torch.Tensor]


class Mover:
    """The transfer of batches to their destination. This base class leaves them on CPU."""

    # Whether send() takes an Unfinished, which is cheaper to move.
    finishes = False
    # Whether it takes page-locked memory, from which it copies in the background.
    pins = False

    def __init__(self) -> None:
        # Where batches are received first.
        self.memory: Memory = RecycledMemory()

    def send(self, item: Any) -> Any:
        """Start moving all tensors of an item, in the thread that read it."""
        return item

    def receive(self, sent: Any) -> Any:
        """Return the item from :meth:`send`, ready for this thread's current stream."""
        return sent


def mover_to(device: torch.device | str | int | None) -> Mover:
    """Return the mover for a device; ``ConfigError`` if there is none."""
    if device is None:
        return Mover()
    try:
        target = torch.device(device)
        if target.type == "cpu":
            return Mover()
        if target.type == "cuda":
            return _CudaStream(target)
        # torch.device accepts names of devices that this machine lacks; an allocation does not.
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"device={device!r} is not to be had: {error}") from error
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
        # torch's pinned allocator waits for copies; our own buffer could be overwritten before
        # a copy has read it.
        self.memory = PinnedMemory()
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        # Items with copies under way: this keeps their memory.
        self._leaving: deque[_Sent] = deque()
        self._lock = threading.Lock()
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def send(self, item: Any) -> Any:
        made_on = torch.cuda.current_stream(self._device)

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type == "cuda":
                self._stream.wait_stream(made_on)  # a transform's work there may be unfinished
            elif not tensor.is_pinned():
                tensor = tensor.pin_memory()
            return tensor.to(self._device, non_blocking=True)

        with torch.cuda.stream(self._stream):
            moved = map_tensors(item, copy)
            copied = self._stream.record_event()
        with self._lock:
            self._leaving.append(_Sent(item, copied))
            while self._leaving and self._leaving[0].copied.query():  # type: ignore[no-untyped-call]
                self._leaving.popleft()
        return _Sent(moved, copied)

    def receive(self, sent: Any) -> Any:
        using = torch.cuda.current_stream(self._device)
        using.wait_event(sent.copied)  # waits on the device; this thread goes on

        def note_use(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(using)  # or its memory could be reused too early
            return tensor

        return map_tensors(sent.item, note_use)


def map_tensors(item: Any, change: Callable[[torch.Tensor], torch.Tensor], *, finish: bool = True) -> Any:
    """Return ``item`` with every tensor changed, also in tuples, lists and mappings."""
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
    """Return ``changed`` in the type of ``item``, or as it is if that cannot be."""
    # A named tuple takes its fields one by one.
    if hasattr(item, "_fields"):
        return type(item)(*changed)
    make: Any = type(item)
    try:
        return make(changed)
    except TypeError:
        return changed
