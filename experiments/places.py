"""Apply the directories that a training service (SageMaker) names by variables to a spec."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.experiments.spec import Spec

# SageMaker uploads these two when a job ends.
OUTPUT_DIR, MODEL_DIR = "SM_OUTPUT_DATA_DIR", "SM_MODEL_DIR"
# SUPER's own, uploaded continuously: the launcher sets it for jobs with checkpoints.
CHECKPOINT_DIR = "SM_CHECKPOINT_DIR"

_TRAIN = ("SM_CHANNEL_TRAIN", "SM_CHANNEL_TRAINING")
_VAL = ("SM_CHANNEL_VAL", "SM_CHANNEL_VALIDATION", "SM_CHANNEL_TEST")
_DEFAULT_OUTPUT = "runs"
_LAST = "checkpoints/last.pt"


def placed(spec: Spec, environment: Mapping[str, str]) -> Spec:
    """Return the spec with the environment's places; those that the spec names take precedence."""
    data, training, output = spec.data, spec.training, spec.output
    train, val = (
        next((environment[name] for name in names if environment.get(name)), None) for names in (_TRAIN, _VAL)
    )
    # Channels become the data.
    if train and not (data.train or data.directory):
        data = replace(data, kind="directory", train=train, val=val, samples=None)
    kept = environment.get(CHECKPOINT_DIR)
    # A checkpoint directory, else the output directory, receives the files.
    if output == _DEFAULT_OUTPUT:
        output = kept or environment.get(OUTPUT_DIR) or output
    # With a directory for models, the run keeps one.
    if (kept or environment.get(MODEL_DIR)) and not (training.checkpoint_every or training.checkpoint_steps):
        training = replace(training, checkpoint_every=1 if kept else spec.epochs)
    # Resume the newest run of that name there.
    if kept and training.resume is None:
        files = Path(kept).glob(f"{spec.name}-2*/{_LAST}")  # as new_directory() names them
        # Names end with the time, so the greatest is the newest.
        newest = max(files, key=lambda file: file.parent.parent.name, default=None)
        training = replace(training, resume=str(newest.parent.parent) if newest else None)
    return replace(spec, data=data, training=training, output=output)
