"""Places that a training service names by variables, and what they mean for a spec: SageMaker's.

A container of a job ends with all that is in it but these: ``SM_OUTPUT_DATA_DIR`` and ``SM_MODEL_DIR`` are
uploaded at the end, a checkpoint directory all the while. What a spec names itself takes precedence.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.experiments.spec import Spec

__all__ = ["CHECKPOINT_DIR", "MODEL_DIR", "OUTPUT_DIR", "placed"]

OUTPUT_DIR, MODEL_DIR = "SM_OUTPUT_DATA_DIR", "SM_MODEL_DIR"
CHECKPOINT_DIR = "SM_CHECKPOINT_DIR"
"""Ours: the launcher sets it where a job has checkpoints."""

_TRAIN = ("SM_CHANNEL_TRAIN", "SM_CHANNEL_TRAINING")
_VAL = ("SM_CHANNEL_VAL", "SM_CHANNEL_VALIDATION", "SM_CHANNEL_TEST")
_DEFAULT_OUTPUT = "runs"
_LAST = "checkpoints/last.pt"


def placed(spec: Spec, environment: Mapping[str, str]) -> Spec:
    """The spec with the places that the environment names.

    Channels are its data, a checkpoint directory gets its files, and the newest run of its name there is
    resumed; else the output directory gets them. Where a model directory is named, the run keeps a model.
    """
    data, training, output = spec.data, spec.training, spec.output
    train, val = (
        next((environment[name] for name in names if environment.get(name)), None) for names in (_TRAIN, _VAL)
    )
    if train and not (data.train or data.directory):
        data = replace(data, kind="directory", train=train, val=val, samples=None)
    kept = environment.get(CHECKPOINT_DIR)
    if output == _DEFAULT_OUTPUT:
        output = kept or environment.get(OUTPUT_DIR) or output
    if (kept or environment.get(MODEL_DIR)) and not (training.checkpoint_every or training.checkpoint_steps):
        training = replace(training, checkpoint_every=1 if kept else spec.epochs)
    if kept and training.resume is None:
        files = Path(kept).glob(f"{spec.name}-2*/{_LAST}")  # as new_directory() names them
        newest = max(files, key=lambda file: file.parent.parent.name, default=None)
        training = replace(training, resume=str(newest.parent.parent) if newest else None)
    return replace(spec, data=data, training=training, output=output)
