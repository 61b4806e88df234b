"""The steps of an epoch: their batches, the updates of the model, and the record of each step."""

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
_OF_FIGURES = ("read_s", "fetch_s", "decode_s", "hits", "misses", "size_bytes")


def learning_rate_factor(spec: OptimizerSpec, step: int, epoch_steps: int, total_steps: int) -> float:
    """Return the factor for ``spec.lr`` at a step (from 0), for schedules other than `one_cycle`."""
    warmup = round(spec.warmup_epochs * epoch_steps)
    if step < warmup:
        return (step + 1) / warmup
    if spec.schedule == "cosine":
        done = (step - warmup) / max(total_steps - warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return 1.0


class Updater:
    """Update a model's parameters from losses, and schedule its learning rate."""

    def __init__(
        self, model: nn.Module, spec: OptimizerSpec, *, epoch_steps: int, epochs: int, scaled_on: str | None
    ) -> None:
        """Make the optimiser and its schedule, over ``epochs`` of ``epoch_steps``."""
        common: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.weight_decay}
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(model.parameters(), momentum=spec.momentum, **common)
            if spec.name == "sgd"
            else torch.optim.AdamW(model.parameters(), **common)
        )
        total = epochs * epoch_steps
        self._schedule: LRScheduler
        if spec.schedule == "one_cycle":  # cycles AdamW's momentum; SGD's is set by the spec
            self._schedule = OneCycleLR(
                self.optimizer, spec.lr, total_steps=total, cycle_momentum=spec.name == "adamw"
            )
        else:
            self._schedule = LambdaLR(
                self.optimizer, lambda step: learning_rate_factor(spec, step, epoch_steps, total)
            )
        # In float16 small gradients would vanish, so the loss is scaled on that device type.
        self._scaler = torch.amp.GradScaler(scaled_on or "cpu", enabled=scaled_on is not None)
        self._applied = False
        self.optimizer.register_step_post_hook(self._on_applied)

    def _on_applied(self, *_: object) -> None:
        self._applied = True  # the scaler may skip the optimiser

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def update(self, loss: Tensor) -> bool:
        """Take a step on a loss. Return False if gradients were not finite, so that all ranks skip it."""
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
        """Return the states of the schedule and the scaler. The strategy saves that of the optimiser."""
        return {"schedule": self._schedule.state_dict(), "scaler": self._scaler.state_dict()}

    def load_state_dict(self, schedule: Mapping[str, Any], scaler: Mapping[str, Any]) -> None:
        """Restore both. A run that did not scale before starts with a fresh scaler."""
        self._schedule.load_state_dict(dict(schedule))
        if scaler and self._scaler.is_enabled():
            self._scaler.load_state_dict(dict(scaler))


def trial_step(spec: Spec, classes: int, device: torch.device) -> Callable[[Tensor, Tensor], None]:
    """Return a function that trains a fresh model of ``spec`` on images and labels, and waits for it."""
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
    """A step whose results are still on the device, some as tensors. Padding samples are excluded."""

    known: dict[str, Any]
    span: ComputeSpan

    def record(self, epoch: int, split: str) -> StepRecord:
        """Return the record of the step, whose results can be fetched now."""
        fetched: dict[str, Any] = {
            name: float(it) if isinstance(it, Tensor) else it for name, it in self.known.items()
        }
        return StepRecord(epoch=epoch, split=split, compute_s=self.span.seconds, **fetched)


def take_step(
    strategy: Strategy, batch: Batch, updater: Updater | None, *, step: int, wait_s: float
) -> HeldStep:
    """Compute the loss of a batch, and update the model unless ``updater`` is None (validation)."""
    (images, labels, figures), device = batch, strategy.device
    model = strategy.evaluated if updater is None else strategy.model
    lr, applied = None if updater is None else updater.lr, True
    # On CUDA everything here is only queued; a group of results is fetched at once.
    with ComputeSpan(device) as span:
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        with strategy.computing():
            logits = model(images)
            loss = cross_entropy(logits, labels)
        if updater is not None:
            applied = updater.update(loss)
        logits, loss = logits.detach(), loss.detach()
        if figures.padding is not None and figures.padding.any():
            own = torch.from_numpy(~figures.padding).to(device)  # another rank or batch counts padding
            logits, labels = logits[own], labels[own]
            loss = cross_entropy(logits, labels)
        correct = (logits.argmax(dim=1) == labels).sum()
        correct5 = correct_within(_TOP, logits, labels)
    samples = max(len(labels), 1)
    known = {name: getattr(figures, name) for name in _OF_FIGURES}
    known |= {
        "step": step,
        "batch_id": figures.batch_id.hex(),
        "samples": len(labels),
        "wait_s": wait_s,
        "total_s": wait_s + span.host_s,  # so far; the loop may wait for the device
        "finished_at_s": time.time(),
        "loss": loss,
        "accuracy": correct.double() / samples,
        "top5_accuracy": None if correct5 is None else correct5.double() / samples,
        "plan_epoch": getattr(figures, "epoch", None),  # a plain loader has no plan
        "position": getattr(figures, "position", None),
        "straight": getattr(figures, "straight", 0),
        "lr": lr,
        "skipped": int(not applied),
    }
    return HeldStep(known, span)


def correct_within(top: int, logits: Tensor, labels: Tensor) -> Tensor | None:
    """Count labels among the ``top`` likeliest classes, or return None if there are no more classes."""
    if logits.shape[1] <= top:
        return None
    return (logits.topk(top, dim=1).indices == labels.unsqueeze(1)).sum()


class Batches:
    """The steps of an epoch over one loader, restarted as often as ``steps`` needs, and the position."""

    def __init__(
        self, loader: Loader, split: str, ranks: Ranks, steps: int | None = None, *, passes: int = 0
    ) -> None:
        # All ranks take as many steps: ``steps``, else the smallest number. ``passes`` count as done.
        self._loader = loader
        self._split = split
        self._again = steps is not None
        self._resumed = False  # a state was loaded, from which the next epoch starts
        self.steps = steps or int(ranks.smallest([len(loader)])[0])
        # Batches of this epoch returned so far.
        self.step = 0
        # The loader can start at any epoch.
        self.repeatable = loader.resumes_within_epochs
        self._passes = passes  # passes of the loader that have begun
        self._given = 0  # batches of the latest pass
        self._iterator: Iterator[Batch] | None = None

    @property
    def resumable(self) -> bool:
        """Whether a run can resume here without repeated or missing samples."""
        return self.step in (0, self.steps) or self.repeatable

    def begin(self) -> None:
        """Begin an epoch, or continue the epoch of a loaded state."""
        if not self._resumed:
            self.step = 0
        self._resumed = False
        self._iterator = None

    def state_dict(self, *, over: bool = False) -> dict[str, Any]:
        """Return the position after the last batch, or the start of the next epoch if ``over``."""
        # An epoch is over once its validation is done.
        if over or self.step in (0, self.steps):
            return {"step": 0 if over else self.step, "pass": self._passes, "loader": None}
        return {"step": self.step, "pass": self._passes - 1, "loader": self._loader.state_dict(self._given)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a position. See `Loader.load_state_dict`."""
        self.step, self._passes = int(state["step"]), int(state["pass"])
        self._resumed = True
        if state["loader"] is not None:
            self._loader.load_state_dict(state["loader"])

    def next(self) -> Batch | None:
        """Return the next batch, or None after the last, which comes earlier if some were left out."""
        if self.step == self.steps:
            return None
        batch = self._begin() if self._iterator is None else next(self._iterator, None)
        if batch is None and self._again:
            batch = self._begin()
        if batch is None:
            bad = getattr(self._loader, "bad_samples", ())
            if any(sample.handled == "batch left out" for sample in bad):
                return None
            raise ConfigError(
                f"the {self._split} loader stopped after {self.step} batches; expected {self.steps}"
            )
        self.step += 1
        self._given += 1
        return batch

    def _begin(self) -> Batch | None:
        self._loader.set_epoch(self._passes)
        self._passes += 1
        self._given = 0
        # A copy of torch's state: loading must not change the model's random numbers.
        with torch.random.fork_rng(devices=[]), starting_workers():
            self._iterator = iter(self._loader)
            return next(self._iterator, None)
