"""What is known of a run, what is written of it, and how it goes on from another's checkpoint.

A run's files are begun at its start and ended at its end, however that comes. What a run does is left to
`experiments.run.training_run`, the states in checkpoints to `experiments.training`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml

from superdl.cost.bill import EpochUse, PaidByHour, bill_of
from superdl.experiments.loader_counters import added
from superdl.experiments.manifest import Manifest, describe_environment
from superdl.experiments.output import write_json
from superdl.experiments.records import Listener
from superdl.experiments.reporting.page import PAGE_NAME
from superdl.experiments.reporting.run_page import write_run_page
from superdl.experiments.run.listeners import say
from superdl.experiments.run_report import RunReport, print_report
from superdl.experiments.training.checkpoints import BEST, FOLDER, Checkpoints, read_checkpoint
from superdl.experiments.training.device import compute_type
from superdl.experiments.training.strategies import strategy_name
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch
    from rich.console import Console

    from superdl.coordinator.executors.price_table import PriceTable
    from superdl.experiments.loader_counters import LoaderCounters
    from superdl.experiments.loaders import Loader
    from superdl.experiments.monitoring import UtilizationMonitor
    from superdl.experiments.records import EpochSummary
    from superdl.experiments.run.listeners import StepTimes
    from superdl.experiments.spec import Spec
    from superdl.experiments.training import Trainer
    from superdl.experiments.training.ranks import Ranks

__all__ = ["RunState", "checkpoints_of", "facts_of", "go_on"]

_log = logging.getLogger(__name__)


def _write_page(directory: Path, console: Console) -> None:
    """Make the page of the run. What goes wrong there is no fault of the run, which has ended as it has."""
    try:
        page = write_run_page(directory)
    except Exception as error:  # noqa: BLE001  # whatever drawing raises, the run's own end matters more
        _log.exception("the page of %s could not be made", directory)
        say(console, f"{PAGE_NAME} was not made ({error}); superdl report {directory} tries again")
    else:
        say(console, f"tables and plots: {page}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class RunState(Listener):
    """What is known of a run so far; also a listener, so that a failed run reports the epochs it did."""

    spec: Spec
    directory: Path
    device: torch.device
    prices: PriceTable
    ranks: Ranks
    started_at: str = field(default_factory=_now)
    start_s: float = field(default_factory=time.perf_counter)
    status: str = "finished"
    reason: str | None = None
    executor: str | None = None
    classes: tuple[str, ...] = ()
    train_samples: int = 0
    val_samples: int | None = None
    epochs: list[EpochSummary] = field(default_factory=list)
    rest: LoaderCounters | None = None
    notes: list[str] = field(default_factory=list)
    monitor: UtilizationMonitor | None = None
    loader_settings: dict[str, Any] = field(default_factory=dict)
    manifest: Manifest | None = None
    step_times: StepTimes | None = None
    wall_s: float | None = None

    def begin(self) -> None:
        """Write what is known at the start."""
        if not self.ranks.leads:
            return
        text = yaml.safe_dump(self.spec.to_mapping(), sort_keys=False)
        (self.directory / "spec.yaml").write_text(text, encoding="utf-8")
        self.manifest = Manifest(
            self.directory,
            self.spec,
            self.device,
            started_at=self.started_at,
            ranks=self.ranks.process.replicas,
        )

    def end(self, console: Console, *, page: bool) -> None:
        """Write and print how it went, as a ``page`` too if that is wanted."""
        self.wall_s = time.perf_counter() - self.start_s
        if not self.ranks.leads:
            return
        report = self.report()
        write_json(report.to_mapping(), self.directory / "report.json")
        if self.manifest is not None:
            self.manifest.end(self.status, _now())
        print_report(report, console)
        if page:
            _write_page(self.directory, console)

    def compare_machines(self) -> None:
        """Note where the bill has another number of training machines than take part; all ranks call it."""
        (hosts,) = self.ranks.sums([float(self.ranks.process.local_rank == 0)])
        cost = self.spec.cost
        if cost.machine is not None and cost.machines != int(hosts):
            took_part = "1 host took" if hosts == 1 else f"{int(hosts)} hosts took"
            self.notes.append(
                f"the bill has {cost.machines} x {cost.machine} (cost.machines), and {took_part} part"
            )

    def close_account(self, rest: Callable[[], LoaderCounters | None]) -> None:
        """Ask what was used after the last whole epoch, while loaders are still there to tell."""
        self.rest = rest()

    def file_name(self, name: str) -> str:
        """The name of a file that each rank writes: rank 0's is the plain one."""
        return name if self.ranks.leads else f"{name}-rank{self.ranks.process.rank}"

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Keep the epoch."""
        self.epochs.append(summary)

    def report(self) -> RunReport:
        """Return all that is known, as a value."""
        wall_s = time.perf_counter() - self.start_s if self.wall_s is None else self.wall_s
        return RunReport(
            name=self.spec.name,
            status=self.status,
            reason=self.reason,
            started_at=self.started_at,
            wall_s=wall_s,
            directory=str(self.directory),
            classes=self.classes,
            train_samples=self.train_samples,
            val_samples=self.val_samples,
            epochs=tuple(self.epochs),
            spec=self.spec.to_mapping(),
            environment=describe_environment(self.device),
            notes=tuple(self.notes),
            executor=self.executor,
            utilization=None if self.monitor is None else self.monitor.utilization(),
            loader_settings=self.loader_settings,
            rest=self.rest,
            bill=bill_of(
                [_use_of(epoch) for epoch in self.epochs],
                hired=PaidByHour(**asdict(self.spec.cost)),
                executor=self.executor,
                wall_s=wall_s,
                prices=self.prices,
                rest=self.rest,
            ),
            step_times=() if self.step_times is None else tuple(self.step_times.times),
            ranks=self.ranks.process.replicas,
            strategy=strategy_name(self.spec.training.strategy, self.ranks.process),
            precision=str(compute_type(self.spec.training.precision, self.device)).removeprefix("torch."),
        )


def _use_of(epoch: EpochSummary) -> EpochUse:
    """An epoch as the bill has it. What the coordinator did not tell of one pass is counted for the next."""
    passes = [one for _, one in epoch.splits()]
    counted = added([one.job for one in passes if one.job is not None])
    return EpochUse(epoch.epoch, sum(one.wall_s for one in passes), epoch.train.samples, counted)


def facts_of(state: RunState, train: Loader, val: Loader | None) -> dict[str, Any]:
    """What decides whether a run can go on from another's checkpoint; the same on all ranks."""
    spec, ranks = state.spec, state.ranks
    recipe = dict(spec.to_mapping()["recipe"])
    steps = recipe.pop("steps")
    listings = ranks.text_of_first(  # files of another host have times of their own
        "listings", lambda: json.dumps([train.fingerprint, None if val is None else val.fingerprint])
    )
    of_train, of_val = json.loads(listings)
    return {
        "model.name": spec.model.name,
        **{f"recipe.{name}": value for name, value in recipe.items()},
        "digest of recipe.steps": None if steps is None else _digest(steps),
        "fingerprint of the training data": of_train,
        "fingerprint of the validation data": of_val,
        "validation images": state.val_samples,
        "classes": len(state.classes),
        "digest of the classes": _digest(list(state.classes)),
        "training images": state.train_samples,
        "seed": spec.seed,
        "epochs": spec.epochs,
        "steps of an epoch": spec.training.steps_per_epoch or int(ranks.smallest([len(train)])[0]),
        "images of a step (loader.batch_size times ranks)": spec.loader.batch_size * ranks.process.replicas,
    }


def checkpoints_of(state: RunState, train: Loader, facts: Mapping[str, Any]) -> Checkpoints | None:
    """The keeper of checkpoints, if the spec asks for any.

    Raises:
        ConfigError: some are to be kept in mid-epoch, where the loader cannot go on.

    """
    training = state.spec.training
    if training.checkpoint_steps is not None and not train.resumes_within_epochs:
        raise ConfigError(
            f"training.checkpoint_steps: loader.kind {state.spec.loader.kind} cannot go on within an epoch; "
            "set training.checkpoint_every=1 in its place, or loader.kind=super"
        )
    if training.checkpoint_every == 0 and training.checkpoint_steps is None and training.best_to is None:
        return None
    return Checkpoints(state.directory / FOLDER, facts, _spec_digest(state.spec))


def _spec_digest(spec: Spec) -> str:
    """Of all that a resumed run has the same, if it is resumed as it was."""
    mapping = spec.to_mapping()
    for name in ("name", "output", "device"):
        del mapping[name]
    del mapping["training"]["resume"]
    return _digest(mapping)


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def _best_of(resumed: Path, checkpoints: Checkpoints, ranks: Ranks) -> tuple[float | None, str | None]:
    """Take over the best checkpoint beside ``resumed``, on rank 0; its accuracy, or why there is none."""

    def take() -> str:
        try:
            return json.dumps([checkpoints.take_best_of(resumed), None])
        except ConfigError as error:
            return json.dumps([None, str(error)])

    best, refused = json.loads(ranks.text_of_first("the best of the resumed run", take))
    if best is not None:
        return float(best), None
    reason = refused or f"there is no {BEST} beside it"
    return None, f"the best checkpoint until then is not taken over, and is judged from here on: {reason}"


def go_on(
    state: RunState,
    trainer: Trainer,
    facts: Mapping[str, Any],
    checkpoints: Checkpoints | None,
    console: Console,
) -> None:
    """Have ``trainer`` go on from the checkpoint that the spec names, and say so.

    Raises:
        ConfigError: there is none, it is damaged, or it is of another training.

    """
    place = str(state.spec.training.resume)
    checkpoint, path = read_checkpoint(place, state.ranks)
    checkpoint.check(facts, place)
    notes = [f"{place}: {trainer.resume(checkpoint)}"]
    if checkpoint.spec_digest != _spec_digest(state.spec):
        notes.append("the spec is another one than the checkpoint's, in what does not keep it from going on")
    if checkpoints is not None:
        trainer.best, note = _best_of(path, checkpoints, state.ranks)
        if note is not None and checkpoint.best is not None:
            notes.append(note)
    for note in notes:
        state.notes.append(note)
        say(console, note)
