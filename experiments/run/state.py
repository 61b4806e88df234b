"""A run's report and files, and resuming from another run's checkpoint."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from superdl.cost.bill import EpochUse, PaidByHour, bill_of
from superdl.experiments.console import say
from superdl.experiments.data import push
from superdl.experiments.machine import describe_machine
from superdl.experiments.output import RowLog, now_text, write_json
from superdl.experiments.records import Listener, added
from superdl.experiments.reporting.run_files import REPORT_NAME
from superdl.experiments.reporting.run_page import write_run_page
from superdl.experiments.reporting.run_report import LearningPoint, RunReport, host_usages, print_report
from superdl.experiments.training.checkpoints import BEST, FOLDER, Checkpoints, read_checkpoint
from superdl.experiments.training.device import compute_type, strategy_name
from superdl.super_wire.errors import ConfigError, SourceError, SuperError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch
    from rich.console import Console

    from superdl.coordinator.executors.price_table import PriceTable
    from superdl.experiments.loaders import Loader
    from superdl.experiments.monitoring import UtilizationMonitor
    from superdl.experiments.records import CountedLoader, EpochSummary, StepRecord
    from superdl.experiments.run.listeners import StepTimes
    from superdl.experiments.spec import Spec
    from superdl.experiments.training import Trainer
    from superdl.experiments.training.ranks import Ranks
    from superdl.sampler.stats import WorkerUse

_log = logging.getLogger(__name__)


class RunState(Listener):
    """A listener that writes a run's report and files during the run, and also after an error."""

    monitor: UtilizationMonitor | None = None
    step_times: StepTimes | None = None
    # Returns the connected workers of the run's coordinator.
    workers_now: Callable[[], Sequence[WorkerUse]] = staticmethod(lambda: ())
    _workers_at_start: Sequence[WorkerUse] | None = None

    def __init__(
        self, spec: Spec, directory: Path, device: torch.device, prices: PriceTable, ranks: Ranks
    ) -> None:
        self.spec = spec
        self.directory = directory
        self.device = device
        self.ranks = ranks
        self._prices = prices
        self._start_s = time.perf_counter()
        rank = "" if ranks.leads else f"-rank{ranks.process.rank}"
        self._steps = RowLog(directory, f"steps{rank}")
        self.report = RunReport(
            name=spec.name,
            started_at=now_text(),
            directory=str(directory),
            spec=spec.to_mapping(),
            environment=describe_machine(device),
            ranks=ranks.process.replicas,
            strategy=strategy_name(spec.training.strategy, ranks.process),
            precision=str(compute_type(spec.training.precision, device)).removeprefix("torch."),
        )
        if ranks.leads:
            spec.write(directory / "spec.yaml")
        self._write()

    def note(self, line: str, print_line: Callable[[str], None] = lambda _: None) -> None:
        """Add a line to the report, and print it."""
        self.report.notes = (*self.report.notes, line)
        print_line(line)

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:  # noqa: ARG002  # a listener's signature
        """Store the number of steps in the pass, and the CPU time that workers used before training."""
        self._batches = batches
        if self._workers_at_start is None:
            self._workers_at_start = self.workers_now()

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Log all fields of each step, and add training steps to the report's learning curve."""
        self._steps.write([asdict(step) for step in steps])
        if steps and steps[-1].split == "train":
            done = steps[-1].epoch + (steps[-1].step + 1) / self._batches
            loss, accuracy = (
                fmean(values) for values in zip(*((s.loss, s.accuracy) for s in steps), strict=True)
            )
            self.report.learning.append(LearningPoint(done, loss, accuracy))

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Add the epoch to the report."""
        self.report.epochs = (*self.report.epochs, summary)
        self.report.hosts = host_usages(self._workers_at_start or (), self.workers_now())
        # Written after each epoch, for runs that are killed later.
        self._write()

    def failed(self, error: BaseException) -> None:
        """Record the error that ended the run in the report."""
        self.report.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        self.report.reason = f"{type(error).__name__}: {error}".removesuffix(": ")

    def _write(self) -> None:
        report = self.report
        report.wall_s = time.perf_counter() - self._start_s
        report.phases = None if self.monitor is None else self.monitor.phases()
        report.step_times = () if self.step_times is None else tuple(self.step_times.times)
        report.bill = bill_of(
            [_use_of(epoch) for epoch in report.epochs],
            hired=PaidByHour(**asdict(self.spec.cost)),
            executor=report.executor,
            wall_s=report.wall_s,
            prices=self._prices,
            rest=report.rest,
        )
        if self.ranks.leads:
            write_json(report.to_mapping(), self.directory / REPORT_NAME)

    def end(self, console: Console, *, page: bool) -> None:
        """Write and print the final report. Also write its page if ``page`` is true."""
        self._steps.close()
        report = self.report
        if report.status == "running":
            report.status = "finished"
        self._write()
        if not self.ranks.leads:
            return
        print_report(report, console)
        if not page:
            return
        try:
            say(console, f"tables and plots: {write_run_page(self.directory)}")
        except Exception as error:  # noqa: BLE001  # a failed plot must not replace the run's own outcome
            _log.exception("cannot write the page of %s", self.directory)
            say(console, f"cannot write the page: {error}. Run superdl report {self.directory} to retry.")

    def send(self, console: Console) -> None:
        """Upload this host's files if the spec's output is a bucket.

        Raises:
            SourceError: the upload failed. Local files remain. A failed run raises its own error instead.
        """
        output = self.spec.output
        # One process per host uploads the host's files.
        if not output.startswith("s3://") or self.ranks.process.local_rank:
            return
        place = f"{output.rstrip('/')}/{self.directory.name}"
        try:
            push(self.directory, place)
        except SourceError as error:
            say(console, f"cannot upload the run's files, which remain in {self.directory}: {error}")
            if self.report.status in ("running", "finished"):
                raise
        else:
            say(console, f"uploaded the run's files to {place}")


def _use_of(epoch: EpochSummary) -> EpochUse:
    """Return an epoch's usage for the bill. If a pass has no counts, the next one includes them."""
    passes = [epoch_pass for epoch_pass in (epoch.train, epoch.val) if epoch_pass is not None]
    counted = added([epoch_pass.job for epoch_pass in passes if epoch_pass.job is not None])
    wall_s = sum(epoch_pass.wall_s for epoch_pass in passes)
    return EpochUse(epoch.epoch, wall_s, epoch.train.samples, counted)


# --------------------------------------------------------------------------------------- resuming a run


def facts_of(state: RunState, train: Loader, val: Loader | None) -> dict[str, Any]:
    """Return the facts that must match for a run to be resumed. They are the same on all ranks."""
    spec, ranks = state.spec, state.ranks
    fingerprints = ranks.text_of_first(  # file times differ between hosts
        lambda: json.dumps([train.fingerprint, None if val is None else val.fingerprint])
    )
    of_train, of_val = json.loads(fingerprints)
    return {
        "model.name": spec.model.name,
        "optimizer.name": spec.optimizer.name,
        "optimizer.schedule": spec.optimizer.schedule,
        **{f"recipe.{name}": value for name, value in spec.to_mapping()["recipe"].items()},
        "fingerprint of the training data": of_train,
        "fingerprint of the validation data": of_val,
        "classes": list(state.report.classes),
        "seed": spec.seed,
        "epochs": spec.epochs,
        "steps of an epoch": spec.training.steps_per_epoch or int(ranks.smallest([len(train)])[0]),
        "images of a step (loader.batch_size times ranks)": spec.loader.batch_size * ranks.process.replicas,
    }


def workers_of(loader: CountedLoader) -> Sequence[WorkerUse]:
    """Return the workers connected to a loader's coordinator, or none if it does not respond."""
    try:
        workers: Sequence[WorkerUse] = getattr(loader.job_stats(), "workers", ())
    except SuperError:
        return ()
    return workers


def checkpoints_of(state: RunState, train: Loader, facts: dict[str, Any]) -> Checkpoints | None:
    """Return the run's checkpoints, or None if the spec disables them."""
    training = state.spec.training
    if training.checkpoint_steps is not None and not train.resumes_within_epochs:
        raise ConfigError(
            f"training.checkpoint_steps: loader.kind {state.spec.loader.kind} cannot resume within an epoch. "
            "Set training.checkpoint_every=1 instead, or loader.kind=super."
        )
    if training.checkpoint_every == 0 and training.checkpoint_steps is None:
        return None
    return Checkpoints(state.directory / FOLDER, facts)


def resume(
    state: RunState,
    trainer: Trainer,
    facts: Mapping[str, Any],
    checkpoints: Checkpoints | None,
    console: Console,
) -> None:
    """Resume ``trainer`` from the checkpoint that the spec names, and report its position."""
    place = str(state.spec.training.resume)
    checkpoint, path = read_checkpoint(place, state.ranks)
    checkpoint.check(facts, place)
    notes = [f"{place}: {trainer.resume(checkpoint)}"]
    if checkpoints is not None:
        copied = state.ranks.text_of_first(lambda: "yes" if checkpoints.copy_best_of(path) else "")
        if not copied and trainer.best is not None:
            trainer.best = None
            notes.append(f"there is no {BEST} beside it, so earlier epochs do not count for the best one")
    for note in notes:
        state.note(note, partial(say, console))
