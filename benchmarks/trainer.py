"""The loop and the small network of ``superdl bench train`` and ``superdl bench gpu``.

Time is taken where the model computes: on a GPU by an event before and after each step, on a CPU by the
host's clock. The gap between two steps is what the next batch was waited for, copies that do not overlap
included. On a GPU the host may run two steps ahead, as a loop does that looks at its losses now and then.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.loading import Loading, Pairs
from benchmarks.processes import cpu_s_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["SmallResNet", "Trainer", "decode_ms"]

_AHEAD = 2
_SMALL_CLASSES = 10  # at least so many has any network here


class _HostMark:
    """What a CUDA event does, by the host's clock: for a device that computes while the host waits."""

    def record(self) -> None:
        self._s = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is under way."""

    def elapsed_time(self, end: _HostMark) -> float:
        """Milliseconds."""
        return 1e3 * (end._s - self._s)


class Trainer:
    """A model in channels_last with its optimiser, and marks around its steps.

    Args:
        network: what is trained; the same from the same seed.
        device: where.
        cores: processors that this process and its workers may use, from now on.
        threads: of torch.
        rate: of learning.
        momentum: of learning.
        precision: what autocast computes in; None: float32, and each step's loss is looked at.

    """

    def __init__(
        self,
        network: Callable[[], nn.Module],
        device: torch.device,
        *,
        cores: Sequence[int],
        threads: int,
        rate: float,
        momentum: float = 0.0,
        precision: torch.dtype | None = None,
    ) -> None:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        self.device = device
        model: nn.Module = network().to(device)
        self._model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=rate, momentum=momentum)
        self._precision = precision
        self.steps: list[tuple[Any, Any]] = []
        self.losses: list[float] = []
        self.images = 0

    def mark(self) -> Any:
        """A moment of the stream that computes."""
        event: Any = torch.cuda.Event
        mark = event(enable_timing=True) if self.device.type == "cuda" else _HostMark()
        mark.record()
        return mark

    def synchronize(self) -> None:
        """Wait for all that is under way."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def moved(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The batch on the device; as it is if a loader has brought it there."""
        images, labels = batch
        return images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Train on one batch, once no more than the steps before the last ones are under way."""
        if len(self.steps) >= _AHEAD:
            self.steps[-_AHEAD][1].synchronize()
        images, labels = self.moved(batch)
        began = self.mark()
        with torch.autocast(self.device.type, self._precision, enabled=self._precision is not None):
            loss = cross_entropy(self._model(images), labels)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self._optimiser.step()
        if self._precision is None:
            self.losses.append(loss.item())
        self.steps.append((began, self.mark()))
        self.images += len(labels)

    def start_counting(self) -> None:
        """Forget what was counted; the first gap begins now, at the end of a step of no length."""
        now = self.mark()
        self.steps = [(now, now)]
        self.losses = []
        self.images = 0

    def busy_s(self) -> float:
        """Seconds with a step under way."""
        return float(sum(began.elapsed_time(ended) for began, ended in self.steps)) / 1e3

    def waiting_s(self) -> float:
        """Seconds between steps."""
        return float(sum(one[1].elapsed_time(after[0]) for one, after in pairwise(self.steps))) / 1e3

    def blank(self, loading: Loading) -> tuple[Tensor, Tensor]:
        """A batch of black images, on the device."""
        shape = (loading.batch_size, loading.crop, loading.crop, 3)
        images = torch.zeros(shape, dtype=torch.uint8).permute(0, 3, 1, 2)
        return self.moved((images, torch.zeros(loading.batch_size, dtype=torch.int64)))

    def epoch(self, batches: Iterable[tuple[Tensor, Tensor]], *, steps: bool = True) -> float:
        """Seconds of one epoch; without ``steps`` batches are only brought to the device."""
        began_s = time.perf_counter()
        for batch in batches:
            if steps:
                self.step(batch)
            else:
                self.moved(batch)
        self.synchronize()
        return time.perf_counter() - began_s

    def compute_ms(self, loading: Loading) -> float:
        """CPU milliseconds of training on an image, with nothing else done."""
        size, side = loading.batch_size, loading.crop
        images = torch.randint(0, 256, (size, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        labels = torch.randint(0, _SMALL_CLASSES, (size,))
        return 1e3 * cpu_s_each(lambda: self.step((images, labels))) / size


def decode_ms(loading: Loading) -> float:
    """CPU milliseconds of Pillow's way from file to pixels, with nothing else done."""
    pairs = Pairs(loading)
    some = range(min(len(pairs), 64))
    return 1e3 * cpu_s_each(lambda: [pairs[index] for index in some]) / len(some)


# ------------------------------------------------------------------------------------------- network


class SmallResNet(nn.Module):
    """A ResNet with one block in each stage, on images made small at once: a millisecond or so an image.

    Takes uint8 of shape (batch, 3, height, width), gives logits of shape (batch, classes). ``width`` is the
    number of channels of the first stage.
    """

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, kernel_size=7, stride=4, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        widths = [width * 2**stage for stage in range(4)]
        self.stages = nn.Sequential(*(_Residual(*one) for one in pairwise([width, *widths])))
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logits. Grey levels become about [-2, 2], in the type of the weights unless autocast rules."""
        centred = images.to(self.classifier.weight.dtype).sub_(127.5).div_(64.0)
        logits: Tensor = self.classifier(self.stages(self.stem(centred)).mean(dim=(2, 3)))
        return logits


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; the image is halved where the number of channels changes."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        stride = 1 if channels == channels_in else 2
        self.body = nn.Sequential(
            _convolution(channels_in, channels, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(channels, channels, 3, 1),
        )
        same = channels == channels_in
        self.shortcut = nn.Identity() if same else _convolution(channels_in, channels, 1, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.body(inputs) + self.shortcut(inputs))


def _convolution(channels_in: int, channels_out: int, size: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, size, stride=stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(channels_out),
    )
