"""Evaluate a checkpoint exactly, over all ranks: ``superdl evaluate RUN``."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.state_dict import set_model_state_dict

from superdl.experiments.console import say
from superdl.experiments.models import build_model
from superdl.experiments.output import write_json
from superdl.experiments.records import PassTotals
from superdl.experiments.run.state import digest
from superdl.experiments.run.training_run import begun, console_of_rank, images_of, opened_loader
from superdl.experiments.schema import apply_overrides
from superdl.experiments.spec import load_spec, parse_spec
from superdl.experiments.training.checkpoints import BEST, FOLDER, LAST, read_checkpoint
from superdl.experiments.training.device import LOAD_WHOLE, compute_type, make_strategy, synchronise
from superdl.experiments.training.loop import of_all_ranks
from superdl.experiments.training.steps import Batches, HeldStep, take_step
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from superdl.experiments.console import Console
    from superdl.experiments.loaders import Loader
    from superdl.experiments.records import PassSummary
    from superdl.experiments.spec import Spec
    from superdl.experiments.training.checkpoints import Checkpoint
    from superdl.experiments.training.device import Strategy
    from superdl.experiments.training.ranks import Ranks

_STEPS_HELD = 20


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of a checkpoint on ``data``. Each image counts once, regardless of the number of ranks."""

    checkpoint: str
    epoch: int
    data: str
    samples: int
    top1: float
    top5: float | None  # None for five classes or fewer
    loss: float  # the mean over the images
    images_per_s: float
    ranks: int
    precision: str


def evaluate(
    run: Path, overrides: Sequence[str] = (), *, checkpoint: str | None = None, console: Console | None = None
) -> Evaluation:
    """Evaluate a checkpoint of ``run``, and write its ``evaluation.json``.

    Args:
        run: the directory of a run that kept checkpoints.
        overrides: changes to its spec, such as ``data.val=s3://bucket/test``.
        checkpoint: ``best`` or ``last``; by default the best if present, else the last.
        console: receives a line at the start.

    Raises:
        ConfigError: the checkpoint or the validation data is missing, or the classes differ.
        SuperError: the data or the device is not available.
    """
    spec = _spec_of(run, overrides)
    path = _checkpoint_of(run, checkpoint)
    with begun(spec) as (ranks, device, name), ExitStack() as stack:
        loaded, _ = read_checkpoint(str(path), ranks, caller="evaluate")
        print_line = partial(say, console_of_rank(console))
        source = images_of(spec, ranks, print_line).val
        if source is None:
            raise ConfigError(
                f"the spec of {run} has no validation images; add --set data.val=s3://bucket/test"
            )
        source = replace(source, classes=_classes_in(run, loaded))
        loader = opened_loader(spec, source, ranks, print_line, pin_memory=device.type == "cuda")
        stack.callback(loader.close)
        if loaded.facts.get("digest of the classes") != digest(list(loader.classes)):
            raise ConfigError(  # labels are indices of the model's classes
                f"the images' {len(loader.classes)} classes do not match the model's "
                f"{loaded.facts.get('classes')} classes in number or name: use the class folders of the "
                "training images"
            )
        model = build_model(spec.model.name, len(loader.classes), device, side=spec.recipe.crop)
        strategy = make_strategy(name, model, device, compute_type(spec.training.precision, device))
        try:
            set_model_state_dict(strategy.evaluated, loaded.model, options=LOAD_WHOLE)
        except RuntimeError as error:
            raise ConfigError(
                f"{path} belongs to a different model than that of the spec: {error}"
            ) from error
        print_line(f"{path} (epoch {loaded.epoch}) on {loader.sample_count:,} images of {source.url}")
        figures = _figures(strategy, loader, ranks)
        evaluation = Evaluation(
            checkpoint=str(path),
            epoch=loaded.epoch,
            data=source.url,
            samples=figures.samples,
            top1=figures.accuracy,
            top5=figures.top5_accuracy,
            loss=figures.loss,
            images_per_s=figures.images_per_s,
            ranks=ranks.process.replicas,
            precision=str(compute_type(spec.training.precision, device)).removeprefix("torch."),
        )
    if ranks.leads:
        write_json(asdict(evaluation), run / "evaluation.json")
    return evaluation


def _spec_of(run: Path, overrides: Sequence[str]) -> Spec:
    path = run / "spec.yaml"
    if not path.is_file():
        raise ConfigError(f"{run} is not the directory of a run: it has no spec.yaml")
    mapping = apply_overrides(load_spec(path).to_mapping(), overrides)
    data = mapping["data"]
    # data.val alone replaces a set with its own images.
    if data["val"] and not data["train"]:
        mapping["data"] = {**data, "kind": "auto", "directory": None, "samples": None, "train": data["val"]}
    return parse_spec(mapping)


def _checkpoint_of(run: Path, name: str | None) -> Path:
    files = {"best": BEST, "last": LAST}
    candidates = [run / FOLDER / file for key, file in files.items() if name in (None, key)]
    checkpoint = next((path for path in candidates if path.is_file()), None)
    if checkpoint is None:
        raise ConfigError(
            f"there is no {name or 'best or last'} checkpoint in {run / FOLDER}: set "
            "training.checkpoint_every=1 to keep checkpoints"
        )
    return checkpoint


def _classes_in(run: Path, known: Checkpoint) -> tuple[str, ...]:
    """Return the classes of the checkpoint, or none if the report does not list them."""
    try:
        report = json.loads((run / "report.json").read_text(encoding="utf-8"))
        classes = list(report["classes"])
    except (OSError, ValueError, LookupError, TypeError):  # then the digests of classes are compared
        return ()
    return tuple(classes) if known.facts.get("digest of the classes") == digest(classes) else ()


def _figures(strategy: Strategy, loader: Loader, ranks: Ranks) -> PassSummary:
    """Process the images once over all ranks, as in validation."""
    totals, held = PassTotals(), list[HeldStep]()

    def release() -> None:
        synchronise(strategy.device)
        for step in held:
            totals.add(step.record(0, "val"))
        held.clear()

    batches = Batches(loader, "val", ranks)
    batches.begin()
    strategy.evaluated.eval()
    # All ranks start the clock together.
    ranks.barrier()
    start_s = time.perf_counter()
    with torch.inference_mode():
        while (batch := batches.next()) is not None:
            held.append(take_step(strategy, batch, None, step=batches.step, wait_s=0.0, gpu=None))
            if len(held) == _STEPS_HELD:
                release()
    release()
    (wall_s,) = ranks.largest([time.perf_counter() - start_s])
    figures = of_all_ranks(totals, ranks).summary(wall_s, None)
    if not figures.samples:
        raise ConfigError("the validation images yield no batch; use others with --set data.val=...")
    return figures


def print_evaluation(figures: Evaluation, console: Console) -> None:
    """Print the figures."""
    top5 = "" if figures.top5 is None else f", top-5 {figures.top5:.4f}"
    say(
        console,
        f"top-1 {figures.top1:.4f}{top5}, loss {figures.loss:.4f} over {figures.samples:,} images, "
        f"{figures.images_per_s:,.0f} images/s",
    )
