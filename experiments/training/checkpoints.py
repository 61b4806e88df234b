"""Checkpoints: files with all state needed to resume a run, written atomically."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from superdl.experiments.training.ranks import Ranks

_FORMAT = 2
FOLDER = "checkpoints"
LAST, BEST = "last.pt", "best.pt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run between two steps."""

    facts: dict[str, Any]  # a run can resume from here if its facts are the same
    epoch: int  # the run resumes in this epoch, after these batches
    batches: dict[str, Any]
    best: float | None  # the best validation accuracy so far
    model: dict[str, Any]
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    scaler: dict[str, Any] = field(default_factory=dict)  # of float16's loss scaling

    def check(self, facts: Mapping[str, Any], place: str) -> None:
        """Raise ConfigError unless a run with ``facts`` can resume from this checkpoint (at ``place``)."""
        differences = [
            _describe_difference(name, f"{self.facts.get(name)!r:.80}", f"{value!r:.80}")
            for name, value in facts.items()
            if self.facts.get(name) != value
        ]
        if differences:
            raise ConfigError(
                f"training.resume: {place} belongs to another run: {'; '.join(differences)} (a fingerprint "
                "changes when files are added, removed, changed, moved or rewritten). Restore the spec, or "
                "remove training.resume to start over (model.weights loads the weights alone)."
            )


def _describe_difference(name: str, there: str, here: str) -> str:
    # Long lists, such as classes, may begin alike.
    return f"{name} differs" if there == here else f"{name} is {there} there but {here} here"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A run's checkpoints. Rank 0 creates their directory when it writes the first one."""

    directory: Path
    facts: dict[str, Any]

    def write(self, file_name: str, checkpoint: Checkpoint) -> None:
        """Write a checkpoint atomically, replacing any previous one of that name."""
        content = {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint)}
        with _replacing(self.directory / file_name) as file:
            try:
                torch.save({"format": _FORMAT, **content}, file)
            except RuntimeError as error:  # torch wraps the error of a full disk
                cause = error.__cause__ or error.__context__
                raise cause if isinstance(cause, OSError) else error from None

    def copy_best_of(self, resumed: Path) -> bool:
        """Copy the best checkpoint found beside ``resumed``. Return False if there is none."""
        best = resumed.with_name(BEST)
        if not best.is_file():
            return False
        with _replacing(self.directory / BEST) as file, best.open("rb") as content:
            shutil.copyfileobj(content, file)
        return True


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces ``path`` once it is complete and on disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same directory, since renaming across file systems is not atomic.
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                # Without this, a crash of the machine could leave an empty file.
                os.fsync(file.fileno())
            Path(partial).replace(path)
        finally:
            Path(partial).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write the checkpoint {path}: {error.strerror or error}. Free some space, or set output "
            "to another place."
        ) from error


def read_checkpoint(place: str, ranks: Ranks, *, caller: str = "training.resume") -> tuple[Checkpoint, Path]:
    """Read a checkpoint on rank 0, and return it on all ranks, with its path.

    Args:
        place: a checkpoint file, or a run's directory, in which case its last checkpoint is read.
        caller: a prefix for error messages.

    Raises:
        ConfigError: there is no checkpoint, or the file is damaged or is not a checkpoint.
    """
    path = Path(place).expanduser()
    content = None
    if ranks.leads:
        candidates = [path, path / FOLDER / LAST, path / LAST]
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
        if file is None:
            raise ConfigError(
                f"{caller}: there is no checkpoint at {path}. Use a file, or the directory of a run with "
                "checkpoints (training.checkpoint_every, training.checkpoint_steps)."
            )
        path = file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{caller}: cannot read {path}: {error.strerror}") from error
    return _parsed(ranks.bytes_of_first(content), f"{caller}: {place}"), path


def _parsed(content: bytes, place: str) -> Checkpoint:
    try:
        loaded: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)  # noqa: TID251  # runs no code
    except Exception as error:  # a damaged file can raise any error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{place} is damaged or not a checkpoint: {reason}") from error
    if not isinstance(loaded, dict) or "format" not in loaded:
        raise ConfigError(f"{place} is not a run checkpoint. To load only weights, use model.weights.")
    if loaded.pop("format") != _FORMAT:
        raise ConfigError(
            f"{place} has a format that this version of SUPER cannot read. Resume with the version that "
            "wrote it."
        )
    return Checkpoint(**loaded)
