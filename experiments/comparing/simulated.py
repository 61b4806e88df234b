"""Reads what ``superdl simulate --output FILE`` has written as if it were a run, so that a prediction can
stand beside what was measured. It says of itself that it is one, and every report marks it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from superdl.experiments.comparing.measured import PassMeasured, RunMeasured
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["read_prediction"]


def read_prediction(path: Path) -> RunMeasured:
    """Read the training job of one prediction.

    Raises:
        ConfigError: the file is no prediction, or one of several points or training jobs.

    """
    try:
        return _run(path, json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not what superdl simulate --output writes: {error!r}") from error


def _run(path: Path, prediction: Mapping[str, Any]) -> RunMeasured:
    if prediction["simulated"] is not True or len(prediction["rows"]) != 1:
        raise ConfigError(f"{path} is no prediction of one point: simulate without a sweep")
    jobs = {job["name"]: job for job in prediction["spec"]["jobs"]}
    training = [name for name, job in jobs.items() if job["follows"] is None]
    if len(training) != 1 or jobs[training[0]]["count"] != 1:
        raise ConfigError(f"{path} predicts {', '.join(training)} together: compare one training job")
    (row,) = prediction["rows"]
    (job,) = (job for job in row["jobs"] if job["name"] == training[0])
    passes = tuple(
        PassMeasured(
            epoch=int(one["epoch"]),
            split="train",
            samples=int(one["samples"]),
            wall_s=float(one["wall_s"]),
            wait_s=float(one["wait_s"]),
            first_batch_s=float(one["first_batch_s"]),
            produced=None,
        )
        for one in job["passes"]
    )
    samples = {data["name"]: int(data["samples"]) for data in prediction["spec"]["datasets"]}
    return RunMeasured(
        name=str(prediction["name"]),
        status="finished",
        train_samples=samples[jobs[training[0]]["dataset"]],
        val_samples=0,
        passes=passes,
        phases=(),
        wall_s=float(row["virtual_s"]),
        simulated=True,
    )
