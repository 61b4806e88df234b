"""The training loop: plain PyTorch, measured step by step, on one rank or several.

Batches come from any loader of `experiments.loaders`; figures go to listeners (progress, step log,
TensorBoard). One step is `experiments.training.steps`', how the model is spread over ranks
`experiments.training.strategies`', what is kept on disk `experiments.training.checkpoints`'.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from experiments.device import synchronise
from experiments.ranks import Place, Ranks
from experiments.records import EpochSummary, JobMeter, PassSummary, PassTotals, StepRecord
from experiments.spec_sections import TrainingSpec
from experiments.stalls import StallMeter
from experiments.training.batches import Batches
from experiments.training.precision import compute_type
from experiments.training.steps import GpuGauge, HeldStep, record_of, take_step
from experiments.training.strategies import make_strategy, strategy_name
from super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from experiments.loaders.interface import Loader
    from experiments.spec_sections import OptimizerSpec
    from experiments.stalls import StalledStep

__all__ = ["Listener", "Trainer"]

_STEPS_HELD = 20
"""Steps whose losses stay on the device until they are fetched: one synchronisation for so many steps."""


class Listener(Protocol):
    """Told what happens while a model is trained, in order, in the main thread."""

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """A pass over ``split`` (train or val) begins."""

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Some steps are done; they come in groups."""

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """An epoch is done, validation included."""


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
        training: TrainingSpec | None = None,
        ranks: Ranks | None = None,
        one_job: bool = False,
        listeners: Sequence[Listener] = (),
        gauge: GpuGauge | None = None,
        tell_stalls: Callable[[Sequence[StalledStep]], None] = lambda _: None,
    ) -> None:
        """Spread the model, make the optimiser and its one-cycle schedule over all epochs.

        ``one_job`` says that a loader's counters are of all ranks, as SUPER's are, and not of its own.
        ``tell_stalls`` gets the steps of each pass that waited for data, once the pass has ended.

        Raises:
            ConfigError: the training loader has no batch, or the strategy is not for so many ranks.

        """
        if len(train) == 0:
            raise ConfigError("the training data gives no batch; lower loader.batch_size or name other data")
        self._training = training or TrainingSpec()
        self._ranks = ranks or Ranks(Place())
        self._val = val
        self._epochs = epochs
        self._device = device
        self._listeners = listeners
        self._gauge = gauge
        self._one_job = one_job
        self._batches = Batches(train, "train", self._ranks, self._training.steps_per_epoch)
        self._meters = {"train": JobMeter(train)}
        self._stalls = {"train": StallMeter(train, self._ranks.place.rank)}
        if val is not None:
            self._meters["val"] = JobMeter(val)
            self._stalls["val"] = StallMeter(val, self._ranks.place.rank)
        self._tell_stalls = tell_stalls
        self._strategy = make_strategy(
            strategy_name(self._training.strategy, self._ranks.place),
            model,
            device,
            compute_type(self._training.precision, device),
        )
        self._optimizer = torch.optim.AdamW(
            self._strategy.model.parameters(), lr=optimizer.lr, weight_decay=optimizer.weight_decay
        )
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, max_lr=optimizer.lr, total_steps=epochs * self._batches.steps
        )

    def fit(self) -> tuple[EpochSummary, ...]:
        """Train all epochs, validating as often as the spec says."""
        return tuple(self._epoch(epoch) for epoch in range(self._epochs))

    def _epoch(self, epoch: int) -> EpochSummary:
        self._strategy.model.train()
        trained = self._pass(epoch, "train", self._batches)
        self._strategy.settle()
        every = self._training.validate_every
        validated = self._validate(epoch) if every > 0 and (epoch + 1) % every == 0 else None
        summary = EpochSummary(epoch, trained, validated)
        for listener in self._listeners:
            listener.on_epoch_end(summary)
        return summary

    def _validate(self, epoch: int) -> PassSummary | None:
        if self._val is None:
            return None
        self._strategy.evaluated.eval()
        with torch.inference_mode():
            return self._pass(epoch, "val", Batches(self._val, "val", self._ranks, None))

    def _pass(self, epoch: int, split: str, batches: Batches) -> PassSummary:
        """Run over the batches of an epoch."""
        for listener in self._listeners:
            listener.on_pass_start(epoch, split, batches.steps)
        totals = PassTotals()
        held: list[HeldStep] = []
        most_held = min(self._training.print_every or _STEPS_HELD, _STEPS_HELD)
        pass_start_s = step_start_s = time.perf_counter()
        batches.begin(epoch)
        while (batch := batches.next()) is not None:
            wait_s = time.perf_counter() - step_start_s
            held.append(
                take_step(
                    self._strategy,
                    batch,
                    self._device,
                    self._update if split == "train" else None,
                    step=batches.step - 1,
                    wait_s=wait_s,
                    gpu=None if self._gauge is None else self._gauge.last_gpu,
                )
            )
            if len(held) == most_held:
                self._release(epoch, split, held, totals)
            step_start_s = time.perf_counter()
        self._release(epoch, split, held, totals)
        return self._summary(split, totals, time.perf_counter() - pass_start_s)

    def _update(self, loss: Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._optimizer.step()
        self._schedule.step()

    def _release(self, epoch: int, split: str, held: list[HeldStep], totals: PassTotals) -> None:
        """Fetch what the held steps computed, add it to the totals and tell the listeners."""
        synchronise(self._device)
        records = [record_of(epoch, split, step) for step in held]
        held.clear()
        for record in records:
            totals.add(record)
        self._stalls[split].add(records)
        for listener in self._listeners:
            listener.on_steps(records)

    def _summary(self, split: str, totals: PassTotals, wall_s: float) -> PassSummary:
        """The pass over all ranks, which wait here for one another."""
        if self._ranks.several:
            totals = totals.over_ranks(self._ranks)
            (wall_s,) = self._ranks.largest([wall_s])
        job = self._meters[split].lap()
        if job is not None and self._ranks.several and not self._one_job:
            job = job.over_ranks(self._ranks)
        stalls, stalled_steps = self._stalls[split].lap()
        self._tell_stalls(stalled_steps)
        return totals.summary(wall_s, job, stalls)
