"""Update a model from a loss: optimiser, learning rate schedule, loss scaling, all torch's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from superdl.experiments.spec import OptimizerSpec


def learning_rate_factor(spec: OptimizerSpec, step: int, epoch_steps: int, total_steps: int) -> float:
    """Return the factor on ``spec.lr`` at a step from 0, for schedules other than `one_cycle`."""
    warmup = round(spec.warmup_epochs * epoch_steps)
    if step < warmup:
        return (step + 1) / warmup
    if spec.schedule == "cosine":
        done = (step - warmup) / max(total_steps - warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    if spec.schedule == "step":
        return float(spec.step_factor ** (step // (spec.step_epochs * epoch_steps)))
    return 1.0


class Updater:
    """Update a model's parameters from losses, and schedule its learning rate."""

    def __init__(
        self, model: nn.Module, spec: OptimizerSpec, *, epoch_steps: int, epochs: int, scaled_on: str | None
    ) -> None:
        """Make the optimiser, and its schedule over ``epochs`` of ``epoch_steps``."""
        common: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.weight_decay}
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(model.parameters(), momentum=spec.momentum, nesterov=spec.nesterov, **common)
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
        """Take a step on a loss; return False if gradients were not finite, when all ranks skip it."""
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
        """Return the states of schedule and scaler; the strategy saves the optimiser's."""
        return {"schedule": self._schedule.state_dict(), "scaler": self._scaler.state_dict()}

    def load_state_dict(self, schedule: Mapping[str, Any], scaler: Mapping[str, Any]) -> None:
        """Restore both; a run that did not scale before starts with a fresh scaler."""
        self._schedule.load_state_dict(dict(schedule))
        if scaler and self._scaler.is_enabled():
            self._scaler.load_state_dict(dict(scaler))
