"""Brings the best checkpoint of a run to where it is asked for: a bucket or a directory.

Which checkpoint is the best is left to `experiments.training.loop`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from superdl.experiments.spec import TrainingSpec

__all__ = ["bring_best", "check_best_to"]

_S3 = "s3://"


def check_best_to(training: TrainingSpec, *, validates: bool) -> None:
    """See at the start that there can be a best checkpoint, and that the place is one.

    Raises:
        ConfigError: there is nothing to judge it by, or the place is no bucket and no directory.

    """
    place = training.best_to
    if place is None:
        return
    if not validates:
        raise ConfigError(
            "training.best_to: which checkpoint is the best is told by validation, and there is none "
            "(data.val is to be set, and training.validate_every from 1 up to epochs)"
        )
    if "://" in place and (not place.startswith(_S3) or not _bucket_and_prefix(place)[0]):
        raise ConfigError(f"training.best_to is s3://bucket/prefix or a directory, not {place!r}")


def bring_best(best: Path, place: str, run_name: str) -> str:
    """Copy ``best`` to ``place``, below a folder of the run's name; returns where it is.

    Raises:
        SourceError: it cannot be brought there; the message names the local file, which stays.

    """
    if not place.startswith(_S3):
        target = Path(place).expanduser() / run_name / best.name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}")
            shutil.copyfile(best, partial)
            partial.replace(target)
        except OSError as error:
            raise _failure(best, str(target), error.strerror or str(error)) from error
        return str(target)

    from boto3.exceptions import Boto3Error  # heavy, and few runs need it
    from botocore.exceptions import BotoCoreError, ClientError

    from superdl.coordinator.catalog.s3_client import make_s3_client

    bucket, prefix = _bucket_and_prefix(place)
    key = "/".join(part for part in (prefix, run_name, best.name) if part)
    try:
        make_s3_client().upload_file(str(best), bucket, key)
    except (Boto3Error, BotoCoreError, ClientError, OSError) as error:
        raise _failure(best, f"{_S3}{bucket}/{key}", str(error)) from error
    return f"{_S3}{bucket}/{key}"


def _bucket_and_prefix(place: str) -> tuple[str, str]:
    bucket, _, prefix = place.removeprefix(_S3).partition("/")
    return bucket, prefix.strip("/")


def _failure(best: Path, place: str, reason: str) -> SourceError:
    return SourceError(
        f"training.best_to: the best checkpoint could not be brought to {place}: {reason}. It is in {best}"
    )
