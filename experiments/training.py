"""The training loop: plain PyTorch, measured step by step.

Batches come from any loader of `experiments.loaders`; figures go to listeners (progress, step log,
TensorBoard). Which device and how its time is taken is left to `experiments.device`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.device import ComputeSpan, autocast, synchronise
from experiments.records import EpochSummary, JobMeter, PassSummary, PassTotals, StepRecord
from super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.loaders.interface import Batch, BatchFigures, Loader
    from experiments.monitoring import GpuReading
    from experiments.spec_sections import OptimizerSpec

__all__ = ["GpuGauge", "Listener", "Trainer"]

_STEPS_HELD = 20
"""Steps whose losses stay on the device until they are fetched: one synchronisation for so many steps."""

_TOP = 5


class GpuGauge(Protocol):
    """Whoever samples the GPU that a model is trained on."""

    @property
    def last_gpu(self) -> GpuReading | None:
        """What was read last; None where nothing can be read."""


class Listener(Protocol):
    """Told what happens while a model is trained, in order, in the main thread."""

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """A pass over ``split`` (train or val) begins."""

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Some steps are done; they come in groups."""

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """An epoch is done, validation included."""


@dataclass(frozen=True, slots=True)
class _HeldStep:
    """A step whose results are still on the device."""

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


class Trainer:
    """A model, its optimiser and the two loaders, trained epoch by epoch."""

    def __init__(
        self,
        model: nn.Module,
        train: Loader,
        val: Loader | None,
        *,
        optimizer: OptimizerSpec,
        epochs: int,
        device: torch.device,
        listeners: Sequence[Listener] = (),
        gauge: GpuGauge | None = None,
    ) -> None:
        """Make the optimiser and its one-cycle schedule over all epochs.

        Raises:
            ConfigError: the training loader has no batch.

        """
        if len(train) == 0:
            raise ConfigError("the training data gives no batch; lower loader.batch_size or name other data")
        self._model = model
        self._train = train
        self._val = val
        self._epochs = epochs
        self._device = device
        self._listeners = listeners
        self._gauge = gauge
        self._meters = {"train": JobMeter(train)}
        if val is not None:
            self._meters["val"] = JobMeter(val)
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=optimizer.lr, weight_decay=optimizer.weight_decay
        )
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, max_lr=optimizer.lr, total_steps=epochs * len(train)
        )

    def fit(self) -> tuple[EpochSummary, ...]:
        """Train all epochs, validating after each."""
        return tuple(self._epoch(epoch) for epoch in range(self._epochs))

    def _epoch(self, epoch: int) -> EpochSummary:
        self._model.train()
        trained = self._pass(epoch, "train", self._train)
        validated = None
        if self._val is not None:
            self._model.eval()
            with torch.inference_mode():
                validated = self._pass(epoch, "val", self._val)
        summary = EpochSummary(epoch, trained, validated)
        for listener in self._listeners:
            listener.on_epoch_end(summary)
        return summary

    def _pass(self, epoch: int, split: str, loader: Loader) -> PassSummary:
        """Run over every batch of a loader once."""
        for listener in self._listeners:
            listener.on_pass_start(epoch, split, len(loader))
        totals = PassTotals()
        held: list[_HeldStep] = []
        pass_start_s = step_start_s = time.perf_counter()
        batches = iter(loader)
        step = 0
        while (batch := next(batches, None)) is not None:
            wait_s = time.perf_counter() - step_start_s
            held.append(self._step(step, batch, wait_s, training=split == "train"))
            if len(held) == _STEPS_HELD:
                self._release(epoch, split, held, totals)
            step += 1
            step_start_s = time.perf_counter()
        self._release(epoch, split, held, totals)
        wall_s = time.perf_counter() - pass_start_s
        return totals.summary(wall_s, self._meters[split].lap())

    def _step(self, step: int, batch: Batch, wait_s: float, *, training: bool) -> _HeldStep:
        """Copy a batch to the device and compute; on CUDA everything here is only queued."""
        images, labels, figures = batch
        with ComputeSpan(self._device) as span:
            images = images.to(self._device, non_blocking=True)
            labels = labels.to(self._device, non_blocking=True)
            with autocast(self._device):
                logits = self._model(images)
                loss = cross_entropy(logits, labels)
            if training:
                self._optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                self._optimizer.step()
                self._schedule.step()
            correct = (logits.detach().argmax(dim=1) == labels).sum()
            correct5 = _correct_within(_TOP, logits.detach(), labels)
        return _HeldStep(
            step=step,
            samples=len(labels),
            wait_s=wait_s,
            total_s=wait_s + span.host_s,
            finished_at_s=time.time(),
            figures=figures,
            span=span,
            loss=loss.detach(),
            correct=correct,
            correct5=correct5,
            gpu=None if self._gauge is None else self._gauge.last_gpu,
        )

    def _release(self, epoch: int, split: str, held: list[_HeldStep], totals: PassTotals) -> None:
        """Fetch what the held steps computed, add it to the totals and tell the listeners."""
        synchronise(self._device)
        records = [_record(epoch, split, step) for step in held]
        held.clear()
        for record in records:
            totals.add(record)
        for listener in self._listeners:
            listener.on_steps(records)


def _correct_within(top: int, logits: Tensor, labels: Tensor) -> Tensor | None:
    """How many labels are among the ``top`` likeliest classes; None where all classes are."""
    if logits.shape[1] <= top:
        return None
    return (logits.topk(top, dim=1).indices == labels.unsqueeze(1)).sum()


def _record(epoch: int, split: str, held: _HeldStep) -> StepRecord:
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
    )
