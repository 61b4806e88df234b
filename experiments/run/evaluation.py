"""``superdl evaluate RUN``: evaluate a checkpoint, on one or several ranks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from superdl.experiments.console import say
from superdl.experiments.models import build_model
from superdl.experiments.output import write_json
from superdl.experiments.run.training_run import begun, console_of_rank, images_of, opened_loader
from superdl.experiments.schema import apply_overrides
from superdl.experiments.spec import load_spec, parse_spec
from superdl.experiments.training import Trainer
from superdl.experiments.training.checkpoints import BEST, FOLDER, LAST, read_checkpoint
from superdl.experiments.training.device import compute_type
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from superdl.experiments.console import Console
    from superdl.experiments.spec import Spec


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A checkpoint's metrics on ``data``. Each image counts once, whatever the number of ranks."""

    checkpoint: str
    epoch: int
    data: str
    samples: int
    top1: float
    top5: float | None  # None for five classes or fewer
    loss: float  # mean over images
    images_per_s: float
    ranks: int
    precision: str


def evaluate(
    run: Path, overrides: Sequence[str] = (), *, checkpoint: str | None = None, console: Console | None = None
) -> Evaluation:
    """Evaluate a checkpoint of a run, and write the result to ``evaluation.json`` in its directory.

    Args:
        run: the directory of a run with checkpoints.
        overrides: changes to the run's spec, such as ``data.val=s3://bucket/test``.
        checkpoint: ``best`` or ``last``. By default, the best if there is one, or else the last.
        console: where to print a line at the start.

    Raises:
        ConfigError: the checkpoint or the validation data is missing, or the classes differ.
        SuperError: the data or the device is not available.
    """
    spec = _spec_of(run, overrides)
    path = _checkpoint_of(run, checkpoint)
    with begun(spec) as (ranks, device):
        loaded, _ = read_checkpoint(str(path), ranks, caller="evaluate")
        print_line = partial(say, console_of_rank(console))
        source = images_of(spec, ranks, print_line).val
        if source is None:
            raise ConfigError(
                f"the spec of {run} has no validation images. Add --set data.val=s3://bucket/test."
            )
        # Labels are indices into the model's classes.
        source = replace(source, classes=tuple(loaded.facts["classes"]))
        with closing(
            opened_loader(spec, source, ranks, print_line, pin_memory=device.type == "cuda")
        ) as loader:
            if tuple(loader.classes) != source.classes:
                raise ConfigError(
                    "the labels of data.val are numbers. Use the class names of the training images."
                )
            model = build_model(spec.model.name, len(loader.classes), device, side=spec.recipe.crop)
            # The training loader is not read, so any will do.
            trainer = Trainer(model, loader, loader, spec, device=device, ranks=ranks)
            trainer.load_model(loaded.model, str(path))
            print_line(f"{path} (epoch {loaded.epoch}) on {loader.sample_count:,} images of {source.url}")
            metrics = trainer.validate()
        evaluation = Evaluation(
            checkpoint=str(path),
            epoch=loaded.epoch,
            data=source.url,
            samples=metrics.samples,
            top1=metrics.accuracy,
            top5=metrics.top5_accuracy,
            loss=metrics.loss,
            images_per_s=metrics.images_per_s,
            ranks=ranks.process.replicas,
            precision=str(compute_type(spec.training.precision, device)).removeprefix("torch."),
        )
    if ranks.leads:
        write_json(asdict(evaluation), run / "evaluation.json")
    return evaluation


def _spec_of(run: Path, overrides: Sequence[str]) -> Spec:
    path = run / "spec.yaml"
    if not path.is_file():
        raise ConfigError(f"{run} is not a run directory: it has no spec.yaml.")
    mapping = apply_overrides(load_spec(path).to_mapping(), overrides)
    data = mapping["data"]
    # If only data.val is overridden, it replaces a set that has its own images.
    if data["val"] and not data["train"]:
        mapping["data"] = {**data, "kind": "auto", "directory": None, "samples": None, "train": data["val"]}
    return parse_spec(mapping)


def _checkpoint_of(run: Path, name: str | None) -> Path:
    files = {"best": BEST, "last": LAST}
    candidates = [run / FOLDER / file for key, file in files.items() if name in (None, key)]
    checkpoint = next((path for path in candidates if path.is_file()), None)
    if checkpoint is None:
        raise ConfigError(
            f"there is no {name or 'best or last'} checkpoint in {run / FOLDER}. Set "
            "training.checkpoint_every=1 to keep checkpoints."
        )
    return checkpoint


def print_evaluation(metrics: Evaluation, console: Console) -> None:
    """Print the metrics on one line."""
    top5 = "" if metrics.top5 is None else f", top-5 {metrics.top5:.4f}"
    say(
        console,
        f"top-1 {metrics.top1:.4f}{top5}, loss {metrics.loss:.4f} over {metrics.samples:,} images, "
        f"{metrics.images_per_s:,.0f} images/s",
    )
