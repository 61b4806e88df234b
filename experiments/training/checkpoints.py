"""Checkpoints: files with all the state needed to resume a run, written atomically."""

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

    facts: dict[str, Any]  # another run can resume if these match
    epoch: int  # it resumes in this epoch, after these batches
    batches: dict[str, Any]
    best: float | None  # the best validation accuracy so far
    model: dict[str, Any]
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    scaler: dict[str, Any] = field(default_factory=dict)  # of float16's loss scaling

    def check(self, facts: Mapping[str, Any], place: str) -> None:
        """Check that a run with ``facts`` can resume from this checkpoint."""
        differ = [
            _difference(name, self.facts.get(name), value)
            for name, value in facts.items()
            if self.facts.get(name) != value
        ]
        if differ:
            raise ConfigError(
                f"training.resume: {place} is a checkpoint of a different training run: {'; '.join(differ)} "
                "(a fingerprint changes when files are added, removed, changed, moved or rewritten). Restore "
                "the spec, or remove training.resume to start over (model.weights loads the weights alone)"
            )


def _difference(name: str, theirs: Any, ours: Any) -> str:
    """Say how a fact differs, even where its text is too long to show the difference."""
    there, here = f"{theirs!r:.80}", f"{ours!r:.80}"
    if there != here:
        return f"{name} is {there} there but {here} here"
    if isinstance(theirs, list) and isinstance(ours, list):
        pairs = enumerate(zip(theirs, ours, strict=False), 1)
        for number, (before, now) in pairs:
            if before != now:
                return _difference(f"item {number} of {name}", before, now)
        return f"{name} has {len(theirs)} items there but {len(ours)} here"
    return f"{name} differs (both begin {here})"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one run, in a directory on rank 0 that is created with the first one."""

    directory: Path
    facts: dict[str, Any]

    def write(self, file_name: str, checkpoint: Checkpoint) -> None:
        """Write a checkpoint atomically, replacing any with that name."""
        content = {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint)}
        with _in_place_of(self.directory / file_name) as file:
            try:
                torch.save({"format": _FORMAT, **content}, file)
            except RuntimeError as error:  # torch's form of the error of a full disk
                cause = error.__cause__ or error.__context__
                raise cause if isinstance(cause, OSError) else error from None

    def take_best_of(self, resumed: Path) -> bool:
        """Copy the best checkpoint of the resumed run. Return False if it has none."""
        theirs = resumed.with_name(BEST)
        if not theirs.is_file():
            return False
        copy_checkpoint(theirs, self.directory / BEST)
        return True

    def copy_model(self, directory: Path) -> None:
        """Copy the best checkpoint, or else the last one, into ``directory``.

        Raises:
            ConfigError: there is neither, or it cannot be written.
        """
        best = self.directory / BEST
        kept = best if best.is_file() else self.directory / LAST
        if not kept.is_file():
            raise ConfigError(
                f"there is no checkpoint to copy to {directory}: set training.checkpoint_every to at most "
                "epochs"
            )
        copy_checkpoint(kept, directory / kept.name)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint atomically."""
    with _in_place_of(target) as file, source.open("rb") as content:
        shutil.copyfileobj(content, file)


@contextlib.contextmanager
def _in_place_of(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces ``path`` once it is complete and on disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same directory: a rename across file systems is not atomic.
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                # Else a crash of the machine could leave an empty file of this name.
                os.fsync(file.fileno())
            Path(partial).replace(path)
        finally:
            Path(partial).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the checkpoint {path} cannot be written: {error.strerror or error}; free some space, or set "
            "output to another place"
        ) from error


def read_checkpoint(place: str, ranks: Ranks, *, caller: str = "training.resume") -> tuple[Checkpoint, Path]:
    """Read a checkpoint, given as a file or as a run whose last one is used, on rank 0 for all ranks.

    ``caller`` is the prefix of error messages.

    Raises:
        ConfigError: there is no checkpoint, or it is damaged or something else.
    """
    path = Path(place).expanduser()
    content = None
    if ranks.leads:
        candidates = [path, path / FOLDER / LAST, path / LAST]
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
        if file is None:
            raise ConfigError(
                f"{caller}: there is no checkpoint at {path}; use a file, or the directory of a run "
                "that kept checkpoints (training.checkpoint_every, training.checkpoint_steps)"
            )
        path = file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{caller}: {path} cannot be read: {error.strerror}") from error
    return _parsed(ranks.bytes_of_first(content), f"{caller}: {place}"), path


def _parsed(content: bytes, place: str) -> Checkpoint:
    try:
        # weights_only: nothing in the file is executed.
        loaded: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)  # noqa: TID251  # weights_only
    except Exception as error:  # a damaged file can raise any error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{place} is damaged or not a checkpoint: {reason}") from error
    if not isinstance(loaded, dict) or "format" not in loaded:
        raise ConfigError(f"{place} is not a run checkpoint; to load only weights, use model.weights")
    if loaded.pop("format") != _FORMAT:
        raise ConfigError(
            f"{place} has a format that this version of SUPER cannot read: resume with the "
            "version that wrote it"
        )
    return Checkpoint(**loaded)
