"""Finds the published image sets in the layouts that their archives unpack to: where their splits lie.

Nothing is written into a user's set. What a set lacks for our loaders (labels of validation images in
folders, images in files) is written once beside it, into ``<directory>-superdl``. Reading MNIST's files is
left to `experiments.data.mnist_files`.
"""

from __future__ import annotations

import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.experiments.data.made_sets import PUBLISHED_SETS
from superdl.experiments.data.mnist_files import convert_mnist, find_mnist
from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Layout", "find_published"]

_TRAIN = ("train", "training")
_VAL = ("val", "test", "valid", "testing")
_ANNOTATIONS = "val_annotations.txt"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories of a set's splits; a key list where folders do not tell classes."""

    train: Path
    val: Path | None
    val_key_list: Path | None = None


def find_published(name: str, directory: Path, tell: Callable[[str], None] = lambda _: None) -> Layout | None:
    """Find the set called ``name`` in ``directory``; None if nothing at all is there.

    Raises:
        SourceError: something is there, but not this set, or parts of it are missing or damaged.
        ConfigError: what has to be written beside the set cannot be.

    """
    directory = directory.expanduser().absolute()
    try:
        return _find(name, directory, tell) if any(directory.iterdir()) else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(
            f"cannot look for {name} in {directory}: {error.strerror}: {error.filename}; data.directory "
            "names a directory that you may read"
        ) from error


def _find(name: str, directory: Path, tell: Callable[[str], None]) -> Layout:
    if name == "mnist":
        files = find_mnist(directory)
        if files is not None:
            converted = convert_mnist(files, _beside(directory), tell)
            return Layout(converted / "train", converted / "val")
    train = _class_folders(directory, _TRAIN)
    if train is None:
        raise SourceError(
            f"{directory} holds something, but not {name} as it is published "
            f"({PUBLISHED_SETS[name].layout}): name the directory that has these below it"
        )
    if name == "tiny-imagenet" and (directory / "val" / _ANNOTATIONS).is_file():
        return _with_annotations(directory, train)
    val = _class_folders(directory, _VAL)
    if val is None and any((directory / split).is_dir() for split in _VAL):
        raise SourceError(
            f"the validation images of {directory} are in no class folders, and nothing tells their classes: "
            f"sort them into folders as {PUBLISHED_SETS[name].layout}, or give data.train, data.val and "
            "data.val_key_list"
        )
    return Layout(train, val)


def _class_folders(directory: Path, names: tuple[str, ...]) -> Path | None:
    """The first directory of ``names`` that has folders in it, other than one called images."""
    for name in names:
        try:
            with os.scandir(directory / name) as entries:
                if any(entry.is_dir() and entry.name != "images" for entry in entries):
                    return directory / name
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None


def _with_annotations(directory: Path, train: Path) -> Layout:
    """Tiny ImageNet, whose validation images lie in one folder: their classes become a key list."""
    labels = _annotations(directory / "val" / _ANNOTATIONS)
    images = directory / "val" / "images"
    if not images.is_dir():
        raise SourceError(f"there is no directory {images}, though {_ANNOTATIONS} is there: unpack it again")
    with os.scandir(images) as entries:
        found = {entry.name for entry in entries}
    absent = sorted(labels.keys() - found)
    if absent:
        raise SourceError(
            f"{images} lacks {len(absent):,} of the {len(labels):,} images that {_ANNOTATIONS} names "
            f"({', '.join(absent[:_SHOWN])}): unpack the archive again"
        )
    content = io.StringIO()
    content.write("key,label\n")
    content.writelines(f"{key},{label}\n" for key, label in sorted(labels.items()))
    key_list = _beside(directory) / "val.csv"
    _write_once(key_list, content.getvalue().encode())
    return Layout(train, images, key_list)


def _annotations(path: Path) -> dict[str, str]:
    """File name -> class, of lines with tabs: file, class, and a box that nobody needs here."""
    labels: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        words = line.split("\t")
        plain = all(word and word.isascii() and not set(word) & set('/,"') for word in words[:2])
        if len(words) < 2 or not plain or words[0] in labels:  # noqa: PLR2004  # file and class
            raise SourceError(
                f"{path}, line {number}: not an image's file and its class with a tab between, each image "
                f"once: {line[:80]!r}; unpack the archive again"
            )
        labels[words[0]] = words[1]
    return labels


def _beside(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}-superdl")


def _write_once(path: Path, content: bytes) -> None:
    """Write a file whole, unless it is there and the same."""
    try:
        if path.is_file() and path.read_bytes() == content:
            return
        path.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(content)
                file.close()
                temporary.chmod(0o644)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the classes of the validation images cannot be written to {path}: {error.strerror}; link the "
            "set into a directory that you may write (ln -s) and name the link"
        ) from error
