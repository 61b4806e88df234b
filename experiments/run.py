"""Carries a spec out: data, loaders, training, report; one directory holds all that a run leaves.

Each part is in a module of its own; this one puts them in order and sees that all is closed, however it ends.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from experiments.bill import bill_of, prices_for
from experiments.data import Source, prepare_data
from experiments.device import pick_device, seed_everything
from experiments.environment import describe_environment
from experiments.executor import embedded_executor, executor_of
from experiments.loaders import Loader, LoaderRequest, open_loader
from experiments.manifest import Manifest
from experiments.models import build_model
from experiments.monitoring import UtilizationMonitor, meter_of
from experiments.progress import make_progress
from experiments.report import RunReport, print_report, write_report
from experiments.reporting.run_page import PAGE_NAME, write_page
from experiments.step_log import StepLog
from experiments.step_modules import shipped_steps_allowed
from experiments.tensorboard_log import TensorBoardLog
from experiments.training import Listener, Trainer
from super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from coordinator.price_table import PriceTable
    from experiments.records import EpochSummary
    from experiments.spec import Spec

__all__ = ["run"]

_log = logging.getLogger(__name__)

_CLASSES_NAMED = 5
_DIRECTORY_NAMES_MAX = 1000


def run(spec: Spec, *, console: Console | None = None) -> RunReport:
    """Carry ``spec`` out, print its table and return the report.

    The directory ``<output>/<name>-<time>`` gets all of it; docs/runs.md says what. A run that fails or is
    interrupted writes its report too, with the reason, before the error goes on.

    Raises:
        SuperError: the spec's data, loader or device cannot be had, or a batch cannot be delivered.
        KeyboardInterrupt: the user ended the run.

    """
    console = console or Console()
    prices = prices_for(spec.cost, os.environ.get("SUPER_PRICES"))
    device = pick_device(spec.device)
    state = _RunState(spec, _new_directory(spec), device, prices)
    text = yaml.safe_dump(spec.to_mapping(), sort_keys=False)
    (state.directory / "spec.yaml").write_text(text, encoding="utf-8")
    manifest = Manifest(state.directory, spec, device, started_at=state.started_at)
    try:
        _train(state, console)
    except BaseException as error:
        state.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        state.reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise
    finally:
        report = state.report()
        write_report(report, state.directory / "report.json")
        manifest.end(state.status, _now())
        print_report(report, console)
        _write_page(state.directory, console)
    return report


def _write_page(directory: Path, console: Console) -> None:
    """Make the page of the run. What goes wrong there is no fault of the run, which has ended as it has."""
    try:
        page = write_page(directory)
    except Exception as error:  # noqa: BLE001  # whatever drawing raises, the run's own end matters more
        _log.exception("the page of %s could not be made", directory)
        _say(console, f"{PAGE_NAME} was not made ({error}); superdl report {directory} tries again")
    else:
        _say(console, f"tables and plots: {page}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class _RunState:
    """What is known of a run so far; also a listener, so that a failed run reports the epochs it did."""

    spec: Spec
    directory: Path
    device: torch.device
    prices: PriceTable
    started_at: str = field(default_factory=_now)
    start_s: float = field(default_factory=time.perf_counter)
    status: str = "finished"
    reason: str | None = None
    executor: str | None = None
    classes: tuple[str, ...] = ()
    train_samples: int = 0
    val_samples: int | None = None
    epochs: list[EpochSummary] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    monitor: UtilizationMonitor | None = None
    loader_settings: dict[str, Any] = field(default_factory=dict)

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Nothing to keep."""

    def on_steps(self, steps: Sequence[object]) -> None:
        """Nothing to keep."""

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Keep the epoch."""
        self.epochs.append(summary)

    def report(self) -> RunReport:
        wall_s = time.perf_counter() - self.start_s
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
            bill=bill_of(
                self.epochs,
                cost=self.spec.cost,
                executor=self.executor,
                wall_s=wall_s,
                prices=self.prices,
            ),
        )


def _train(state: _RunState, console: Console) -> None:
    spec = state.spec
    seed_everything(spec.seed)
    with ExitStack() as stack:
        stack.enter_context(shipped_steps_allowed(spec.recipe))
        state.executor = executor_of(spec)
        monitor = _monitor(state, stack)
        data = prepare_data(spec.data, lambda line: _say(console, line))
        if data.note is not None:
            state.notes.append(data.note)
            _say(console, data.note)
        functions = "" if state.executor is None else f", functions: {state.executor}"
        _say(console, f"training on {data.train.url} with loader {spec.loader.kind}{functions}")
        train = _open(spec, data.train, state.device, training=True)
        stack.callback(train.close)
        val = None
        if data.val is not None:
            val = _open(spec, data.val, state.device, training=False)
            stack.callback(val.close)
            _check_same_classes(train, val)
        state.loader_settings = dict(train.settings)
        state.classes = tuple(train.classes)
        state.train_samples = train.sample_count
        state.val_samples = None if val is None else val.sample_count
        _say(
            console,
            f"{state.train_samples:,} training images, {state.val_samples or 0:,} validation images, "
            f"{len(state.classes)} classes, device {state.device.type}",
        )
        Trainer(
            build_model(spec.model.name, len(state.classes), state.device),
            train,
            val,
            optimizer=spec.optimizer,
            epochs=spec.epochs,
            device=state.device,
            listeners=[monitor, *_listeners(state, console, stack)],
            gauge=monitor,
        ).fit()


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _open(spec: Spec, source: Source, device: torch.device, *, training: bool) -> Loader:
    request = LoaderRequest(
        source=source,
        recipe=spec.recipe,
        loader=spec.loader,
        training=training,
        seed=spec.seed,
        pin_memory=device.type == "cuda",
    )
    with embedded_executor(spec):
        return open_loader(spec.loader.kind, request)


def _check_same_classes(train: Loader, val: Loader) -> None:
    """A label is an index into the classes, so both splits must count them alike."""
    if tuple(train.classes) != tuple(val.classes):
        differing = sorted(set(train.classes) ^ set(val.classes))
        named = ", ".join(differing[:_CLASSES_NAMED]) + (", ..." if len(differing) > _CLASSES_NAMED else "")
        raise ConfigError(
            f"data.train and data.val have different classes (only in one of them: {named}); "
            "give both the same class folders",
        )


def _monitor(state: _RunState, stack: ExitStack) -> UtilizationMonitor:
    """Begin to sample, before anything is started; the stack ends it, after all else has ended."""
    gpu = None
    try:
        gpu = meter_of(state.device)
    except ConfigError as error:
        state.notes.append(str(error))
    monitor = state.monitor = UtilizationMonitor(state.directory, gpu)

    def end() -> None:
        monitor.close()
        if monitor.failure is not None:
            state.notes.append(monitor.failure)

    stack.callback(end)
    return monitor


def _listeners(state: _RunState, console: Console, stack: ExitStack) -> list[Listener]:
    """Open all that writes while the run goes on; the stack closes it."""
    steps = StepLog(state.directory)
    stack.callback(steps.close)
    listeners: list[Listener] = [state, steps]
    try:
        events = TensorBoardLog(state.directory / "tensorboard")
    except ConfigError as error:
        state.notes.append(str(error))
    else:
        stack.callback(events.close)
        listeners.append(events)
    progress = make_progress(console, state.spec.epochs)
    stack.callback(progress.close)
    return [*listeners, progress]


def _new_directory(spec: Spec) -> Path:
    """Make a directory that no other run has."""
    parent = Path(spec.output).expanduser()
    stem = f"{spec.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for number in range(1, _DIRECTORY_NAMES_MAX + 1):
        directory = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            directory.mkdir(parents=True)
            return directory.resolve()
        except FileExistsError:
            continue
        except OSError as error:
            message = (
                f"cannot make {directory}: {error.strerror}; set output to a directory that you may write"
            )
            raise ConfigError(message) from error
    raise ConfigError(
        f"{parent} has {_DIRECTORY_NAMES_MAX} runs named {stem} already; set another output or name"
    )
