"""A plain PyTorch training loop on one or several ranks, measured step by step."""

from __future__ import annotations

import logging
import time
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict, set_state_dict

from superdl.experiments.records import (
    SECONDS,
    CounterLaps,
    EpochSummary,
    LoaderCounters,
    PassTotals,
    StallMeter,
    added,
)
from superdl.experiments.training.checkpoints import BEST, LAST, Checkpoint
from superdl.experiments.training.device import (
    LOAD_WHOLE,
    SAVE_WHOLE,
    compute_type,
    make_strategy,
    strategy_name,
    synchronise,
)
from superdl.experiments.training.ranks import ProcessRank, Ranks, StopRequest, Terminated
from superdl.experiments.training.steps import Batches, HeldStep, Updater, take_step
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.experiments.loaders import Loader
    from superdl.experiments.records import Listener, PassSummary
    from superdl.experiments.spec import Spec
    from superdl.experiments.training.checkpoints import Checkpoints

_log = logging.getLogger(__name__)

# Results of this many steps stay on the device until they are fetched in one synchronisation.
_STEPS_HELD = 20
# Steps queued on a GPU besides the current one. With a longer queue, the loop could wait for data while the
# GPU has work left, and the measured wait would not be idle time.
_STEPS_QUEUED = 2


class Trainer:
    """Train and validate a model, epoch by epoch."""

    def __init__(
        self,
        model: nn.Module,
        train: Loader,
        val: Loader | None,
        spec: Spec,
        *,
        device: torch.device,
        ranks: Ranks | None = None,
        listeners: Sequence[Listener] = (),
        checkpoints: Checkpoints | None = None,
        stop: StopRequest | None = None,
    ) -> None:
        """Distribute the model, and create the optimiser and its schedule over all epochs.

        Args:
            checkpoints: where to write checkpoints, at the intervals in ``spec.training``.
            stop: may end training after any step.

        Raises:
            ConfigError: ``train`` has no batches, or the strategy does not fit the ranks.
        """
        if len(train) == 0:
            raise ConfigError(
                "there are too few images for a batch. Lower loader.batch_size, or use more images."
            )
        self._training = spec.training
        self._ranks = ranks or Ranks(ProcessRank())
        self._val = val
        self._epochs = spec.epochs
        self._first_seed = spec.seed << 32
        self._device = device
        self._listeners = listeners
        # SUPER's counters cover all ranks; other loaders count their own rank.
        self._one_job = spec.loader.runs_functions
        self._checkpoints = checkpoints
        self._stop = stop or StopRequest(self._ranks)
        self._first_epoch = 0
        self.best: float | None = None  # validation accuracy of the best checkpoint
        self._batches = Batches(train, "train", self._ranks, self._training.steps_per_epoch)
        loaders = {"train": train} | ({} if val is None else {"val": val})
        process = self._ranks.process
        self._meters = {split: CounterLaps(loader) for split, loader in loaders.items()}
        self._stalls = {
            split: StallMeter(loader, process.rank, process.replicas) for split, loader in loaders.items()
        }
        name = strategy_name(self._training.strategy, process)
        self._strategy = make_strategy(name, model, device, compute_type(self._training.precision, device))
        self._updater = Updater(
            self._strategy.model,
            spec.optimizer,
            epoch_steps=self._batches.steps,
            epochs=spec.epochs,
            scaled_on=device.type if self._strategy.scales else None,
        )

    def fit(self) -> tuple[EpochSummary, ...]:
        """Train the remaining epochs, and validate at the spec's intervals."""
        self._stop.begin()
        summaries = tuple(self._epoch(epoch) for epoch in range(self._first_epoch, self._epochs))
        self._stop.end()
        return summaries

    def _epoch(self, epoch: int) -> EpochSummary:
        self._strategy.model.train()
        trained = self._pass(epoch, "train", self._batches)
        self._strategy.settle()
        validated = self.validate(epoch) if self._validates(epoch) else None
        self._keep_epoch(epoch, validated)
        summary = EpochSummary(epoch, trained, validated)
        for listener in self._listeners:
            listener.on_epoch_end(summary)
        return summary

    def validate(self, epoch: int = 0) -> PassSummary:
        """Evaluate the model on the validation images. Each image counts once over all ranks."""
        if self._val is None:
            raise ConfigError("there are no validation images. Set data.val.")
        self._strategy.evaluated.eval()
        with torch.inference_mode():
            return self._pass(epoch, "val", Batches(self._val, "val", self._ranks, passes=epoch))

    def _validates(self, epoch: int) -> bool:
        every = self._training.validate_every
        return self._val is not None and every > 0 and (epoch + 1) % every == 0

    # ------------------------------------------------------------------------------------- checkpoints

    def load_model(self, state: dict[str, Any], place: str) -> None:
        """Load the model's state from the checkpoint at ``place``. Raise ConfigError if it does not fit."""
        try:
            set_model_state_dict(self._strategy.evaluated, state, options=LOAD_WHOLE)
        except RuntimeError as error:
            raise ConfigError(f"the checkpoint {place} belongs to another model: {error}") from error

    def resume(self, checkpoint: Checkpoint) -> str:
        """Make the next `fit` resume from a checkpoint. Return a description of the position."""
        if checkpoint.epoch >= self._epochs:
            raise ConfigError(
                f"training.resume: all {self._epochs} epochs are trained, and the schedule has ended. Use "
                "model.weights to load the weights alone."
            )
        set_state_dict(
            self._strategy.model,
            self._updater.optimizer,
            model_state_dict=checkpoint.model,
            optim_state_dict=checkpoint.optimizer,
            options=LOAD_WHOLE,
        )
        self._updater.load_state_dict(checkpoint.schedule, checkpoint.scaler)
        self._batches.load_state_dict(checkpoint.batches)
        self._first_epoch, self.best = checkpoint.epoch, checkpoint.best
        line = f"resuming from epoch {checkpoint.epoch + 1}, step {self._batches.step + 1}"
        if self._batches.step == self._batches.steps:
            line = f"resuming with the validation of epoch {checkpoint.epoch + 1}, whose steps are done"
        elif self._batches.step:
            line += ": the training metrics of that epoch cover only the rest of it"
        if not self._batches.repeatable and checkpoint.epoch:
            line += "; this loader cannot start at a later epoch, so the orders of the first epochs repeat"
        return line

    def _keep(self, epoch: int, *names: str, over: bool) -> None:
        """Gather the state from all ranks, and write it on rank 0. If ``over``, ``epoch`` is complete."""
        if self._checkpoints is None or not names:
            return
        # A collective: all ranks must call it.
        model, optimizer = get_state_dict(self._strategy.model, self._updater.optimizer, options=SAVE_WHOLE)
        if not self._ranks.leads:
            return
        checkpoint = Checkpoint(
            facts=self._checkpoints.facts,
            epoch=epoch + 1 if over else epoch,
            batches=self._batches.state_dict(over=over),
            best=self.best,
            model=model,
            optimizer=dict(optimizer),
            **self._updater.state_dict(),
        )
        for name in names:
            self._checkpoints.write(name, checkpoint)

    def _keep_epoch(self, epoch: int, validated: PassSummary | None) -> None:
        names = []
        every = self._training.checkpoint_every
        if self._training.checkpoint_steps is not None or (every > 0 and (epoch + 1) % every == 0):
            names.append(LAST)
        if validated is not None and (self.best is None or validated.accuracy > self.best):
            self.best = validated.accuracy
            names.append(BEST)
        self._keep(epoch, *names, over=True)

    def _after_step(self, epoch: int, split: str, batches: Batches) -> None:
        """Stop if requested, and write a checkpoint if due within the epoch."""
        ends = batches.step == batches.steps
        if split == "val":  # a resumed run restarts validation
            if not ends and self._stop.due():
                with torch.inference_mode(mode=False):
                    self._end(epoch, over=False)
            return
        over = ends and not self._validates(epoch)
        if self._stop.due() and not (over and epoch + 1 == self._epochs):  # else training is complete
            self._end(epoch, over=over)
        every = self._training.checkpoint_steps
        if not ends and every is not None and batches.step % every == 0:
            self._keep(epoch, LAST, over=False)

    def _end(self, epoch: int, *, over: bool) -> NoReturn:
        # If resuming here would repeat or miss samples, the last epoch's checkpoint remains.
        if self._batches.step in (0, self._batches.steps) or self._batches.repeatable:
            self._keep(epoch, LAST, over=over)
        self._ranks.barrier()  # when one rank exits, torchrun ends the others, even while rank 0 writes
        raise Terminated

    # --------------------------------------------------------------------------------------- one pass

    def _pass(self, epoch: int, split: str, batches: Batches) -> PassSummary:
        for listener in self._listeners:
            listener.on_pass_start(epoch, split, batches.steps)
        totals = PassTotals()
        held: list[HeldStep] = []
        most_held = min(self._training.print_every or _STEPS_HELD, _STEPS_HELD)
        pass_start_s = step_start_s = time.perf_counter()
        batches.begin()
        try:
            while (batch := batches.next()) is not None:
                wait_s = time.perf_counter() - step_start_s
                self._seed(epoch, batches)
                step = take_step(
                    self._strategy,
                    batch,
                    self._updater if split == "train" else None,
                    step=batches.step - 1,
                    wait_s=wait_s,
                )
                held.append(step)
                if len(held) > _STEPS_QUEUED:
                    held[-1 - _STEPS_QUEUED].span.wait()
                step.known["total_s"] = time.perf_counter() - step_start_s
                if len(held) == most_held:
                    self._release(epoch, split, held, totals)
                self._after_step(epoch, split, batches)
                step_start_s = time.perf_counter()
        except BaseException as error:
            self._release_last(epoch, split, held, totals, error)
            raise
        self._release(epoch, split, held, totals)
        return self._summary(split, totals, time.perf_counter() - pass_start_s)

    def _seed(self, epoch: int, batches: Batches) -> None:
        # A resumed run then draws the same numbers, such as for dropout.
        process = self._ranks.process
        steps = epoch * batches.steps + batches.step
        seed = ((self._first_seed + steps) * process.replicas + process.rank) % 2**63
        # Not torch.manual_seed, which formats a stack trace for each backend: up to a millisecond a step.
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _release(self, epoch: int, split: str, held: list[HeldStep], totals: PassTotals) -> None:
        synchronise(self._device)
        records = [step.record(epoch, split) for step in held]
        held.clear()
        for record in records:
            totals.add(record)
        self._stalls[split].add(records)
        for listener in self._listeners:
            listener.on_steps(records)

    def _release_last(
        self, epoch: int, split: str, held: list[HeldStep], totals: PassTotals, error: BaseException
    ) -> None:
        if self._ranks.several and self._device.type == "cuda" and not isinstance(error, Terminated):
            return  # a step may wait for a failed rank on the device, forever
        try:
            self._release(epoch, split, held, totals)
        except Exception:  # noqa: BLE001  # the caller raises the first error
            _log.exception("the last steps of epoch %d, %s, are lost", epoch + 1, split)

    def _summary(self, split: str, totals: PassTotals, wall_s: float) -> PassSummary:
        job = self._meters[split].lap()
        if self._ranks.several:
            totals = of_all_ranks(totals, self._ranks)
            (wall_s,) = self._ranks.largest([wall_s])
            if job is not None and not self._one_job:
                counts = astuple(job)
                sums = self._ranks.sums([float(value) for value in counts])
                job = LoaderCounters(*(type(value)(total) for value, total in zip(counts, sums, strict=True)))
        return totals.summary(wall_s, job, self._stalls[split].lap())

    def rest(self) -> LoaderCounters | None:
        """Return the counts since the last pass, or None if the coordinator did not respond."""
        # These counts cover an unfinished pass and samples produced ahead. Loaders that decode in their own
        # workers count only this rank.
        laps = [meter.lap() for meter in self._meters.values()]
        known = [lap for lap in laps if lap is not None]
        return added(known) if len(known) == len(laps) else None


def of_all_ranks(totals: PassTotals, ranks: Ranks) -> PassTotals:
    """Combine totals over ranks: sum results, average seconds, and take the latest first batch."""
    whole = PassTotals()
    # All ranks have the same number of batches, and skip the same steps.
    whole.batches, whole.skipped = totals.batches, totals.skipped
    whole.sums = dict(zip(totals.sums, ranks.sums(list(totals.sums.values())), strict=True))
    whole.sums |= {name: whole.sums[name] / ranks.process.replicas for name in SECONDS}
    whole.first_batch_s, has_top5 = ranks.largest([totals.first_batch_s, float(totals.has_top5)])
    whole.has_top5 = has_top5 > 0
    return whole
