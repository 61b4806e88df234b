"""One step: a batch goes to the device, through the model, and becomes a record.

What is computed stays on the device until a group of steps is fetched at once. The order of steps is left to
`experiments.training.loop`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from superdl.experiments.device import ComputeSpan
from superdl.experiments.records import StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.experiments.loaders.interface import Batch, BatchFigures
    from superdl.experiments.monitoring import GpuReading
    from superdl.experiments.training.strategies import Strategy

__all__ = ["GpuGauge", "HeldStep", "correct_within", "record_of", "take_step"]

_TOP = 5


class GpuGauge(Protocol):
    """Whoever samples the GPU that a model is trained on."""

    @property
    def last_gpu(self) -> GpuReading | None:
        """What was read last; None where nothing can be read."""


@dataclass(frozen=True, slots=True)
class HeldStep:
    """A step whose results are still on the device; padding is in none of them."""

    step: int
    samples: int
    wait_s: float
    total_s: float
    finished_at_s: float
    figures: BatchFigures
    span: ComputeSpan
    loss: Tensor
    correct: Tensor
    correct5: Tensor | None
    gpu: GpuReading | None


def take_step(
    strategy: Strategy,
    batch: Batch,
    device: torch.device,
    update: Callable[[Tensor], None] | None,
    *,
    step: int,
    wait_s: float,
    gpu: GpuReading | None,
) -> HeldStep:
    """Compute a batch's loss and let ``update`` learn from it; None: only see how good the model is.

    On CUDA everything here is only queued.
    """
    images, labels, figures = batch
    model = strategy.evaluated if update is None else strategy.model
    with ComputeSpan(device) as span:
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        with strategy.computing():
            logits = model(images)
            loss = cross_entropy(logits, labels)
        if update is not None:
            update(loss)
        logits, loss = logits.detach(), loss.detach()
        if figures.padding is not None and figures.padding.any():
            logits, labels = _without_padding(logits, labels, figures)
            loss = cross_entropy(logits, labels)
        correct = (logits.argmax(dim=1) == labels).sum()
        correct5 = correct_within(_TOP, logits, labels)
    return HeldStep(
        step=step,
        samples=len(labels),
        wait_s=wait_s,
        total_s=wait_s + span.host_s,  # so far; the loop may wait for the device
        finished_at_s=time.time(),
        figures=figures,
        span=span,
        loss=loss,
        correct=correct,
        correct5=correct5,
        gpu=gpu,
    )


def _without_padding(logits: Tensor, labels: Tensor, figures: BatchFigures) -> tuple[Tensor, Tensor]:
    """What is no sample twice: another rank, or an earlier batch, counts those."""
    own = torch.from_numpy(~figures.padding).to(labels.device)  # type: ignore[operator]  # it was looked at
    return logits[own], labels[own]


def correct_within(top: int, logits: Tensor, labels: Tensor) -> Tensor | None:
    """How many labels are among the ``top`` likeliest classes; None where all classes are."""
    if logits.shape[1] <= top:
        return None
    return (logits.topk(top, dim=1).indices == labels.unsqueeze(1)).sum()


def record_of(epoch: int, split: str, held: HeldStep) -> StepRecord:
    """The record of a step whose results can be fetched."""
    figures = held.figures
    return StepRecord(
        epoch=epoch,
        split=split,
        step=held.step,
        batch_id=figures.batch_id.hex(),
        samples=held.samples,
        wait_s=held.wait_s,
        read_s=figures.read_s,
        fetch_s=figures.fetch_s,
        decode_s=figures.decode_s,
        compute_s=held.span.seconds,
        total_s=held.total_s,
        hits=figures.hits,
        misses=figures.misses,
        size_bytes=figures.size_bytes,
        loss=float(held.loss),
        accuracy=float(held.correct) / max(held.samples, 1),
        finished_at_s=held.finished_at_s,
        top5_accuracy=None if held.correct5 is None else float(held.correct5) / max(held.samples, 1),
        gpu_percent=None if held.gpu is None else held.gpu.busy_percent,
        gpu_memory_bytes=None if held.gpu is None else held.gpu.memory_bytes,
        plan_epoch=getattr(figures, "epoch", None),  # a plain loader has no plan
        position=getattr(figures, "position", None),
    )
