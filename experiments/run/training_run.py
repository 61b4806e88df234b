"""Run a spec end to end: data, loaders, training and report. All results go into one directory."""

from __future__ import annotations

import contextlib
import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from superdl.cost.bill import PaidByHour, prices_for
from superdl.experiments.augmentations import shipped_modules
from superdl.experiments.console import Console, say
from superdl.experiments.data import prepare_data
from superdl.experiments.loaders import LoaderRequest, open_loader
from superdl.experiments.models import build_model, load_weights
from superdl.experiments.monitoring import UtilizationMonitor, gpu_meter
from superdl.experiments.output import new_directory
from superdl.experiments.run.listeners import Progress, StepTimes
from superdl.experiments.run.state import RunState, checkpoints_of, facts_of, resume, workers_of
from superdl.experiments.training import Trainer
from superdl.experiments.training.device import pick_device, seed_everything, strategy_name
from superdl.experiments.training.ranks import StopRequest, join_ranks, process_rank
from superdl.super_wire.display import counted, shown
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.run_directory import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from superdl.experiments.data import PreparedData, Source
    from superdl.experiments.loaders import Loader
    from superdl.experiments.records import Listener
    from superdl.experiments.reporting.run_report import RunReport
    from superdl.experiments.spec import RecipeSpec, Spec
    from superdl.experiments.training.ranks import Ranks

_STEP_MODULES = "SUPER_STEP_MODULES"
_MAX_BAD_SAMPLES = 100  # listed in the report


def run(spec: Spec, *, console: Console | None = None, page: bool = True) -> RunReport:
    """Run ``spec`` in ``<output>/<name>-<time>``, print a table, and return the report.

    docs/runs.md describes the files. If the run fails or is interrupted, the report contains the reason.

    Raises:
        SuperError: the data, the loader or the device is not available, or a batch cannot be delivered.
        KeyboardInterrupt: the user interrupted the run, or the process received SIGTERM.
    """
    prices = prices_for(PaidByHour(**asdict(spec.cost)), os.environ.get("SUPER_PRICES"))
    console = console_of_rank(console)
    state: RunState | None = None
    try:
        with begun(spec) as (ranks, device):
            place = temporary_directory() if spec.output.startswith("s3://") else spec.output
            directory = Path(ranks.text_of_first(lambda: str(new_directory(place, spec.name))))
            directory.mkdir(parents=True, exist_ok=True)  # on hosts other than rank 0's
            state = RunState(spec, directory, device, prices, ranks)
            state.send(console)  # fails early if the bucket is not writable
            _train(state, console)
    except BaseException as error:
        if state is not None:
            state.failed(error)
        raise
    finally:
        if state is not None:
            state.end(console, page=page)
            state.send(console)
    return state.report


def _train(state: RunState, console: Console) -> None:
    spec, ranks, print_line = state.spec, state.ranks, partial(say, console)
    with ExitStack() as stack:
        weights = spec.training.resume or spec.model.weights
        state.report.model = f"{spec.model.name}, {f'weights of {weights}' if weights else 'not pretrained'}"
        print_line(f"model {state.report.model}")
        state.report.executor = executor_of(spec)
        try:
            gpu = gpu_meter(state.device)
        except ConfigError as error:
            gpu = None
            state.note(str(error))
        state.monitor = UtilizationMonitor(gpu)
        stack.callback(state.monitor.close)  # after everything else
        train, val = _loaders(state, stack, print_line)
        state.workers_now = partial(workers_of, train)
        facts = facts_of(state, train, val)
        checkpoints = checkpoints_of(state, train, facts)
        listeners: list[Listener] = [state.monitor, state]
        if spec.training.print_every is not None:
            state.step_times = StepTimes(spec.training.print_every, print_line)
            listeners.append(state.step_times)
        if ranks.leads:
            listeners.append(Progress(print_line, spec.epochs))
        trainer = Trainer(
            _model(state, print_line),
            train,
            val,
            spec,
            device=state.device,
            ranks=ranks,
            listeners=listeners,
            checkpoints=checkpoints,
            stop=stack.enter_context(StopRequest(ranks)),
        )
        stack.callback(lambda: setattr(state.report, "rest", trainer.rest()))  # while loaders are open
        if spec.training.resume is not None:
            resume(state, trainer, facts, checkpoints, console)
        trainer.fit()


def _loaders(
    state: RunState, stack: ExitStack, print_line: Callable[[str], None]
) -> tuple[Loader, Loader | None]:
    """Open the loaders of both splits, and describe them in the report. ``stack`` closes them."""
    spec, ranks, report = state.spec, state.ranks, state.report
    data = images_of(spec, ranks, print_line)
    if data.note is not None:
        state.note(data.note, print_line)
    functions = "" if report.executor is None else f", functions: {report.executor}"
    print_line(f"training on {data.train.url} with loader {spec.loader.kind}{functions}")

    def opened(source: Source, *, training: bool) -> Loader:
        pin_memory = state.device.type == "cuda"
        loader = opened_loader(spec, source, ranks, print_line, training=training, pin_memory=pin_memory)
        # Callbacks run in reverse, so bad samples are noted before the loader closes.
        stack.callback(loader.close)
        stack.callback(_note_bad_samples, state, loader)
        return loader

    train, val = opened(data.train, training=True), None
    if data.val is not None:
        # Labels of both splits must be indices into the same classes.
        source = replace(data.val, classes=tuple(train.classes))
        val = opened(source, training=False)
        if tuple(val.classes) != source.classes:
            raise ConfigError("the labels of data.val are class names, but those of data.train are numbers.")
    report.loader_settings = dict(train.settings)
    report.classes = tuple(train.classes)
    report.train_samples = train.sample_count
    report.val_samples = None if val is None else val.sample_count
    print_line(
        f"{report.train_samples:,} training images, {report.val_samples or 0:,} validation images, "
        f"{len(report.classes)} classes, device {state.device.type}"
        + (f", {ranks.process.replicas} ranks" if ranks.several else "")
    )
    return train, val


def _note_bad_samples(state: RunState, loader: Loader) -> None:
    # Only SUPER's loaders have bad_samples.
    bad = getattr(loader, "bad_samples", ())
    for sample in bad[:_MAX_BAD_SAMPLES]:
        what = f"bad sample, {sample.handled}, {counted(sample.times, 'time')}"
        state.note(f"{what}: {shown(sample.key)} ({shown(sample.reason)})")
    if len(bad) > _MAX_BAD_SAMPLES:
        state.note(f"{len(bad) - _MAX_BAD_SAMPLES:,} more bad samples")


def _model(state: RunState, print_line: Callable[[str], None]) -> nn.Module:
    spec, ranks = state.spec, state.ranks
    model = build_model(spec.model.name, len(state.report.classes), state.device, side=spec.recipe.crop)
    if spec.model.weights is not None:
        with ranks.one_of_each_host_first():
            note = load_weights(model, spec.model.weights, spec.model.weights_from)
        state.note(note, print_line)
    return model


# ----------------------------------------------------------------- parts of a run, for other commands too


@contextlib.contextmanager
def begun(spec: Spec) -> Iterator[tuple[Ranks, torch.device]]:
    """Join the other ranks, seed everything, and yield the ranks and the device."""
    process = process_rank()
    device = pick_device(spec.device, process)
    alone = strategy_name(spec.training.strategy, process) == "fsdp"
    threads = torch.get_num_threads()
    with join_ranks(process, device, alone=alone) as ranks, shipped_steps_allowed(spec.recipe):
        torch.set_num_threads(spec.training.threads or threads)
        try:
            seed_everything(spec.seed)
            yield ranks, device
        finally:
            torch.set_num_threads(threads)


def console_of_rank(console: Console | None) -> Console:
    """Return the console on rank 0, and one that prints nothing on the other ranks."""
    return (console or Console()) if process_rank().rank == 0 else Console(quiet=True)


def images_of(spec: Spec, ranks: Ranks, print_line: Callable[[str], None]) -> PreparedData:
    """Find or generate a run's images, first on one rank of each host and then on the others."""
    with ranks.one_of_each_host_first():
        return prepare_data(spec.data, print_line)


def opened_loader(
    spec: Spec,
    source: Source,
    ranks: Ranks,
    print_line: Callable[[str], None],
    *,
    training: bool = False,
    pin_memory: bool = False,
) -> Loader:
    """Open the spec's loader for a split."""
    request = LoaderRequest(
        source=source,
        recipe=spec.recipe,
        loader=spec.loader,
        training=training,
        seed=spec.seed,
        pin_memory=pin_memory,
        rank=ranks.process.rank,
        replicas=ranks.process.replicas,
        print_line=print_line,
    )
    return open_loader(request)


def executor_of(spec: Spec) -> str | None:
    """Return the name of a run's executor, or None if its loader runs no functions."""
    if not spec.loader.runs_functions:
        return None
    coordinator = spec.loader.coordinator or os.environ.get("SUPER_COORDINATOR")
    if coordinator:
        return f"as the coordinator at {coordinator} decides"
    return os.environ.get("SUPER_EXECUTOR") or "local"


@contextlib.contextmanager
def shipped_steps_allowed(recipe: RecipeSpec) -> Iterator[None]:
    """Allow processes started in the block to import the recipe's steps from `experiments.augmentations`."""
    # Functions import only modules that their operator lists, and this run is the operator.
    shipped = shipped_modules(recipe.steps)
    before = os.environ.get(_STEP_MODULES)
    if not shipped:
        yield
        return
    os.environ[_STEP_MODULES] = ",".join(filter(None, [before, *shipped]))
    try:
        yield
    finally:
        os.environ.pop(_STEP_MODULES)
        if before is not None:
            os.environ[_STEP_MODULES] = before
