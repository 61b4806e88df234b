"""The steps of an epoch: batches, model updates, and a record of each step."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from superdl.experiments.loaders.decoding import starting_workers
from superdl.experiments.models import build_model
from superdl.experiments.records import StepRecord
from superdl.experiments.training.device import ComputeSpan, compute_type, make_strategy, synchronise
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from superdl.experiments.loaders import Batch, Loader
    from superdl.experiments.spec import OptimizerSpec, Spec
    from superdl.experiments.training.device import Strategy
    from superdl.experiments.training.ranks import Ranks

_TOP = 5
_BATCH_METRICS = ("read_s", "fetch_s", "decode_s", "hits", "misses", "size_bytes")


def learning_rate_factor(spec: OptimizerSpec, step: int, epoch_steps: int, total_steps: int) -> float:
    """Return the factor for ``spec.lr`` at a step (from 0), with schedules other than `one_cycle`."""
    warmup = round(spec.warmup_epochs * epoch_steps)
    if step < warmup:
        return (step + 1) / warmup
    if spec.schedule == "cosine":
        done = (step - warmup) / max(total_steps - warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return 1.0


class Updater:
    """A model's optimiser with its learning-rate schedule and loss scaler."""

    def __init__(
        self, model: nn.Module, spec: OptimizerSpec, *, epoch_steps: int, epochs: int, scaled_on: str | None
    ) -> None:
        common: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.weight_decay}
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(model.parameters(), momentum=spec.momentum, **common)
            if spec.name == "sgd"
            else torch.optim.AdamW(model.parameters(), **common)
        )
        total = epochs * epoch_steps
        self._schedule: LRScheduler
        if spec.schedule == "one_cycle":  # the spec sets SGD's momentum, so only AdamW's is cycled
            self._schedule = OneCycleLR(
                self.optimizer, spec.lr, total_steps=total, cycle_momentum=spec.name == "adamw"
            )
        else:
            self._schedule = LambdaLR(
                self.optimizer, lambda step: learning_rate_factor(spec, step, epoch_steps, total)
            )
        # Small gradients would vanish in float16, so the loss is scaled on this device type.
        self._scaler = torch.amp.GradScaler(scaled_on or "cpu", enabled=scaled_on is not None)
        self._applied = False
        self.optimizer.register_step_post_hook(self._on_applied)

    def _on_applied(self, *_: object) -> None:
        self._applied = True  # not called if the scaler skips the step

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def update(self, loss: Tensor) -> bool:
        """Take a step on a loss. Return False if all ranks skip it because gradients are not finite."""
        self.optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._applied = False
        self._scaler.step(self.optimizer)
        self._scaler.update()
        # The schedule does not count skipped steps.
        if self._applied:
            self._schedule.step()
        return self._applied

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the schedule and the scaler. The optimiser's is saved with the model's."""
        return {"schedule": self._schedule.state_dict(), "scaler": self._scaler.state_dict()}

    def load_state_dict(self, schedule: Mapping[str, Any], scaler: Mapping[str, Any]) -> None:
        """Restore both states. If the saved run did not scale its loss, the scaler starts fresh."""
        self._schedule.load_state_dict(dict(schedule))
        if scaler and self._scaler.is_enabled():
            self._scaler.load_state_dict(dict(scaler))


def trial_step(spec: Spec, classes: int, device: torch.device) -> Callable[[Tensor, Tensor], None]:
    """Build the spec's model, and return a function that trains it for one step and waits for the device."""
    model = build_model(spec.model.name, classes, device, side=spec.recipe.crop).train()
    strategy = make_strategy("single", model, device, compute_type(spec.training.precision, device))
    scaled_on = device.type if strategy.scales else None
    updater = Updater(model, spec.optimizer, epoch_steps=10_000, epochs=1, scaled_on=scaled_on)

    def step(images: Tensor, labels: Tensor) -> None:
        with strategy.computing():
            loss = cross_entropy(strategy.model(images.to(device)), labels.to(device))
        updater.update(loss)
        synchronise(device)

    return step


@dataclass(slots=True)
class HeldStep:
    """A step with some results still on the device, as tensors. Results exclude padding samples."""

    known: dict[str, Any]
    span: ComputeSpan

    def record(self, epoch: int, split: str) -> StepRecord:
        """Fetch the results from the device. Call this after `synchronise`."""
        fetched: dict[str, Any] = {
            name: float(value) if isinstance(value, Tensor) else value for name, value in self.known.items()
        }
        return StepRecord(epoch=epoch, split=split, compute_s=self.span.seconds, **fetched)


def take_step(
    strategy: Strategy, batch: Batch, updater: Updater | None, *, step: int, wait_s: float
) -> HeldStep:
    """Compute a batch's loss, and update the model unless ``updater`` is None (validation)."""
    (images, labels, metrics), device = batch, strategy.device
    model = strategy.evaluated if updater is None else strategy.model
    lr, applied = None if updater is None else updater.lr, True
    # On CUDA this only queues work. Results of several steps are fetched together later.
    with ComputeSpan(device) as span:
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        with strategy.computing():
            logits = model(images)
            loss = cross_entropy(logits, labels)
        if updater is not None:
            applied = updater.update(loss)
        logits, loss = logits.detach(), loss.detach()
        if metrics.padding is not None and metrics.padding.any():
            own = torch.from_numpy(~metrics.padding).to(device)  # padding counts in another rank or batch
            logits, labels = logits[own], labels[own]
            loss = cross_entropy(logits, labels)
        correct = (logits.argmax(dim=1) == labels).sum()
        correct5 = None
        if logits.shape[1] > _TOP:
            correct5 = (logits.topk(_TOP, dim=1).indices == labels.unsqueeze(1)).sum()
    samples = max(len(labels), 1)
    known = {name: getattr(metrics, name) for name in _BATCH_METRICS}
    known |= {
        "step": step,
        "batch_id": metrics.batch_id.hex(),
        "samples": len(labels),
        "wait_s": wait_s,
        "total_s": wait_s + span.host_s,  # updated if the loop waits for the device
        "finished_at_s": time.time(),
        "loss": loss,
        "accuracy": correct.double() / samples,
        "top5_accuracy": None if correct5 is None else correct5.double() / samples,
        "plan_epoch": getattr(metrics, "epoch", None),  # a plain loader has no plan
        "position": getattr(metrics, "position", None),
        "straight": getattr(metrics, "straight", 0),
        "lr": lr,
        "skipped": int(not applied),
    }
    return HeldStep(known, span)


class Batches:
    """The batches of an epoch and the position in it. The loader restarts as often as ``steps`` requires."""

    def __init__(
        self, loader: Loader, split: str, ranks: Ranks, steps: int | None = None, *, passes: int = 0
    ) -> None:
        # All ranks take the same number of steps: by default, that of the rank with the fewest batches.
        self._loader = loader
        self._split = split
        self._again = steps is not None
        self._resumed = False  # a state was loaded, from which the next epoch starts
        self.steps = steps or int(ranks.smallest([len(loader)])[0])
        self.step = 0  # batches returned in this epoch
        self.repeatable = loader.resumes_within_epochs
        self._passes = passes  # passes over the loader so far, the current one included
        self._returned = 0  # batches returned in the current pass
        self._iterator: Iterator[Batch] | None = None

    def begin(self) -> None:
        """Begin an epoch, or continue the epoch in a loaded state."""
        if not self._resumed:
            self.step = 0
        self._resumed = False
        self._iterator = None

    def state_dict(self, *, over: bool = False) -> dict[str, Any]:
        """Return the position after the last batch or, if the epoch is ``over``, the next epoch's start."""
        # An epoch is over after its validation.
        if over or self.step in (0, self.steps):
            return {"step": 0 if over else self.step, "pass": self._passes, "loader": None}
        loader = self._loader.state_dict(self._returned)
        return {"step": self.step, "pass": self._passes - 1, "loader": loader}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a position. See `Loader.load_state_dict`."""
        self.step, self._passes = int(state["step"]), int(state["pass"])
        self._resumed = True
        if state["loader"] is not None:
            self._loader.load_state_dict(state["loader"])

    def next(self) -> Batch | None:
        """Return the next batch, or None at the end, which comes early if all samples of a batch were bad."""
        if self.step == self.steps:
            return None
        batch = self._begin() if self._iterator is None else next(self._iterator, None)
        if batch is None and self._again:
            batch = self._begin()
        if batch is None:
            bad = getattr(self._loader, "bad_samples", ())
            if any(sample.handled == "batch left out" for sample in bad):
                return None
            raise ConfigError(f"the {self._split} loader stopped after {self.step} of {self.steps} batches")
        self.step += 1
        self._returned += 1
        return batch

    def _begin(self) -> Batch | None:
        self._loader.set_epoch(self._passes)
        self._passes += 1
        self._returned = 0
        # Loading must not change the model's random numbers.
        with torch.random.fork_rng(devices=[]), starting_workers():
            self._iterator = iter(self._loader)
            return next(self._iterator, None)
