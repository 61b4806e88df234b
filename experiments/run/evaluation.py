"""``superdl evaluate RUN``: a checkpoint on validation images, its own or others, exactly, over all ranks."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.state_dict import set_model_state_dict
from torch.nn.functional import cross_entropy

from superdl.experiments.console import print_rows, say
from superdl.experiments.models import build_model
from superdl.experiments.output import write_json
from superdl.experiments.run.state import digest
from superdl.experiments.run.training_run import begun, console_of_rank, images_of, opened_loader
from superdl.experiments.schema import apply_overrides
from superdl.experiments.spec import load_spec, parse_spec
from superdl.experiments.training.checkpoints import BEST, FOLDER, LAST, read_checkpoint
from superdl.experiments.training.device import (
    LOAD_WHOLE,
    compute_type,
    make_strategy,
    synchronise,
)
from superdl.experiments.training.steps import Batches, correct_within, without_padding
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from superdl.experiments.console import Console
    from superdl.experiments.loaders import Loader
    from superdl.experiments.spec import Spec
    from superdl.experiments.training.checkpoints import Checkpoint
    from superdl.experiments.training.device import Strategy
    from superdl.experiments.training.ranks import Ranks

__all__ = ["ClassFigures", "Evaluation", "evaluate", "print_evaluation"]

_FILE = "evaluation.json"
_MISTAKES_SHOWN = 3
_TOP = 5


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One class: how many of its images there were, the share that was right, and what others were taken for.

    ``taken_for`` counts mistakes by the name of the class that the model said, the most frequent first.
    """

    name: str
    samples: int
    accuracy: float | None
    taken_for: dict[str, int]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a checkpoint is worth on ``data``.

    Each of ``samples`` images counts once, however many ranks there were; ``loss`` is their mean; ``top5`` is
    None for five classes or fewer.
    """

    checkpoint: str
    epoch: int
    data: str
    samples: int
    top1: float
    top5: float | None
    loss: float
    images_per_s: float
    ranks: int
    precision: str
    classes: tuple[ClassFigures, ...]


def evaluate(
    run: Path, overrides: Sequence[str] = (), *, checkpoint: str | None = None, console: Console | None = None
) -> Evaluation:
    """Evaluate a checkpoint of ``run``, and write the figures into its directory, ``evaluation.json``.

    Args:
        run: the directory of a run that kept checkpoints.
        overrides: of its spec, such as ``data.val=s3://bucket/test``.
        checkpoint: ``best`` or ``last``; None: the best one where it is, else the last.
        console: gets a line at the start.

    Raises:
        ConfigError: there is no such checkpoint, no validation data, or its classes are others.
        SuperError: the data or the device cannot be had.

    """
    spec = _spec_of(run, overrides)
    path = _checkpoint_of(run, checkpoint)
    with begun(spec) as (ranks, device, name), ExitStack() as stack:
        known, _ = read_checkpoint(str(path), ranks, asked_by="evaluate")
        tell = partial(say, console_of_rank(console))
        source = images_of(spec, ranks, tell).val
        if source is None:
            raise ConfigError(
                f"the spec of {run} names no validation images; add --set data.val=s3://bucket/test"
            )
        source = replace(source, classes=_classes_in(run, known))
        loader = opened_loader(spec, source, ranks, tell, training=False, pin_memory=device.type == "cuda")
        stack.callback(loader.close)
        _check_classes(known, loader)
        model = build_model(spec.model.name, len(loader.classes), device, side=spec.recipe.crop)
        strategy = make_strategy(name, model, device, compute_type(spec.training.precision, device))
        _load(strategy, known, path)
        tell(f"{path} (epoch {known.epoch}) on {loader.sample_count:,} images of {source.url}")
        figures = _figures(strategy, loader, ranks)
        found = Evaluation(
            checkpoint=str(path),
            epoch=known.epoch,
            data=source.url,
            ranks=ranks.process.replicas,
            precision=str(compute_type(spec.training.precision, device)).removeprefix("torch."),
            **figures,
        )
    if ranks.leads:
        write_json(asdict(found), run / _FILE)
    return found


def _spec_of(run: Path, overrides: Sequence[str]) -> Spec:
    """The run's spec; ``data.val`` alone takes the place of a set that has images of its own."""
    path = run / "spec.yaml"
    if not path.is_file():
        raise ConfigError(f"{run} is no directory of a run: it has no spec.yaml")
    mapping = apply_overrides(load_spec(path).to_mapping(), overrides)
    data = mapping["data"]
    if data["val"] and not data["train"]:
        mapping["data"] = {**data, "kind": "auto", "directory": None, "samples": None, "train": data["val"]}
    return parse_spec(mapping)


def _checkpoint_of(run: Path, name: str | None) -> Path:
    files = {"best": BEST, "last": LAST}
    candidates = [run / FOLDER / file for key, file in files.items() if name in (None, key)]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise ConfigError(
            f"there is no {name or 'best or last'} checkpoint in {run / FOLDER}: a run keeps them with "
            "training.checkpoint_every=1"
        )
    return found


def _classes_in(run: Path, known: Checkpoint) -> tuple[str, ...]:
    """Return the classes that the checkpoint tells apart; none where the run's report does not name them."""
    try:
        report = json.loads((run / "report.json").read_text(encoding="utf-8"))
        classes = list(report["classes"])
    except (OSError, ValueError, LookupError, TypeError):  # _check_classes compares digests
        return ()
    return tuple(classes) if known.facts.get("digest of the classes") == digest(classes) else ()


def _check_classes(known: Checkpoint, loader: Loader) -> None:
    """A label is an index into the classes, so both must count them alike."""
    if known.facts.get("digest of the classes") != digest(list(loader.classes)):
        raise ConfigError(
            f"the images have {len(loader.classes)} classes, and the model tells "
            f"{known.facts.get('classes')} apart, or has other names for them: give the images the class "
            "folders of the training images"
        )


def _load(strategy: Strategy, known: Checkpoint, path: Path) -> None:
    try:
        set_model_state_dict(strategy.evaluated, known.model, options=LOAD_WHOLE)
    except RuntimeError as error:
        raise ConfigError(f"{path} is of another model than the spec: {error}") from error


def _figures(strategy: Strategy, loader: Loader, ranks: Ranks) -> dict[str, Any]:
    """Go over the images once and add up over all ranks what came of them."""
    device, count = strategy.device, len(loader.classes)
    confusion = torch.zeros(count * count, dtype=torch.int64, device=device)
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # of losses, and right among five
    batches = Batches(loader, "val", ranks)
    batches.begin()
    strategy.evaluated.eval()
    ranks.barrier()
    start_s = time.perf_counter()
    with torch.inference_mode():
        while (batch := batches.next()) is not None:
            images, labels = (one.to(device, non_blocking=True) for one in batch[:2])
            with strategy.computing():
                logits = strategy.evaluated(images)
            logits, labels = without_padding(logits, labels, batch[2])
            confusion += torch.bincount(labels * count + logits.argmax(dim=1), minlength=count * count)
            sums[0] += cross_entropy(logits.float(), labels, reduction="sum")
            sums[1] += correct_within(_TOP, logits, labels) or 0
    synchronise(device)
    (wall_s,) = ranks.largest([time.perf_counter() - start_s])
    confusion, (loss, correct5) = ranks.summed(confusion.cpu()).view(count, count), ranks.summed(sums.cpu())
    samples = int(confusion.sum())
    if not samples:
        raise ConfigError("the validation images give no batch; name others by --set data.val=...")
    return {
        "samples": samples,
        "top1": float(confusion.diagonal().sum()) / samples,
        "top5": float(correct5) / samples if count > _TOP else None,
        "loss": float(loss) / samples,
        "images_per_s": samples / wall_s,
        "classes": tuple(_class_of(row, at, loader.classes) for at, row in enumerate(confusion)),
    }


def _class_of(row: Tensor, at: int, names: Sequence[str]) -> ClassFigures:
    samples, mistakes = int(row.sum()), {other: int(row[other]) for other in row.nonzero().flatten().tolist()}
    right = mistakes.pop(at, 0)
    most_first = sorted(mistakes.items(), key=lambda item: -item[1])
    return ClassFigures(
        names[at],
        samples,
        right / samples if samples else None,
        {names[other]: times for other, times in most_first},
    )


def print_evaluation(found: Evaluation, console: Console) -> None:
    """Print the figures, and the classes, those that are told worst first."""
    rows = []
    for one in sorted(found.classes, key=lambda one: 1.0 if one.accuracy is None else one.accuracy):
        mistakes = [f"{name} {times}" for name, times in list(one.taken_for.items())[:_MISTAKES_SHOWN]]
        right = "-" if one.accuracy is None else f"{100 * one.accuracy:.1f}"
        rows.append((one.name, ", ".join(mistakes), f"{one.samples:,}", right))
    print_rows(console, ("class", "taken for", "images", "right (%)"), rows, words=2)
    top5 = "" if found.top5 is None else f", top-5 {found.top5:.4f}"
    say(
        console,
        f"top-1 {found.top1:.4f}{top5}, loss {found.loss:.4f} over {found.samples:,} images, "
        f"{found.images_per_s:,.0f} images/s",
    )
