"""What a benchmark's loader is told, and the small interface behind which each one stands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

__all__ = ["Contender", "Loading", "Opened"]


@dataclass(frozen=True, slots=True)
class Loading:
    """What is loaded and how.

    Args:
        directory: images in class folders.
        converted: where the same images lie in other loaders' formats, one folder for each format.
        resize: of the shorter side, in pixels.
        crop: centre crop, in pixels.
        batch_size: images of a batch; the last of an epoch may be shorter.
        num_workers: processes that load beside the main one.
        coordinator: SUPER's address; other loaders leave it alone.
        store: URL of an S3 server whose buckets lie around ``directory``; empty where none runs.
        seed: of the shuffle.
        device: where the trainer computes. SuperLoader brings batches there; for a GPU the others give them
            in page-locked memory.

    """

    directory: str
    converted: str
    resize: int
    crop: int
    batch_size: int
    num_workers: int
    coordinator: str = ""
    store: str = ""
    seed: int = 0
    device: str = "cpu"

    @property
    def pin_memory(self) -> bool:
        """Whether batches are copied to a GPU."""
        return self.device.startswith("cuda")

    def format_directory(self, name: str) -> Path:
        """Where the images lie in the format of that name."""
        return Path(self.converted) / name


class Contender(Protocol):
    """An opened loader. Each iteration is one epoch, in an order of its own.

    Images are uint8 of shape (batch, 3, height, width), labels int64 of shape (batch,). A batch is good until
    the next one is asked for: a loader may use its memory again.
    """

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Begin the next epoch."""

    def produced(self) -> int:
        """How many samples functions have decoded until now; 0 for a loader that decodes by itself."""

    def close(self) -> None:
        """End the workers and whatever else was opened."""


class Opened:
    """A contender over anything that iterates like a DataLoader and ends with its last reference.

    ``pair`` turns what it yields into images and labels.
    """

    def __init__(
        self, batches: Iterable[Any], pair: Callable[[Any], tuple[Tensor, Tensor]] | None = None
    ) -> None:
        self._batches: Iterable[Any] | None = batches
        self._pair = pair

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = self._batches or ()
        return iter(batches) if self._pair is None else map(self._pair, batches)

    def produced(self) -> int:
        """Nothing: functions are SUPER's alone."""
        return 0

    def close(self) -> None:
        """Let go of the last reference: persistent workers end with it."""
        self._batches = None
