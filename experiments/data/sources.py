"""Turn a spec's `data` section into source URLs, generating the image set if it is missing.

A user's own set is never modified. Additional files for it are written to ``<directory>-superdl``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.experiments.data.making import made_in, make_digits, make_set
from superdl.experiments.image_sets import MADE_SETS, PUBLISHED_SETS, MadeSet, default_directory
from superdl.experiments.output import write_whole
from superdl.super_wire.errors import ConfigError, SourceError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.experiments.spec import DataSpec


@dataclass(frozen=True, slots=True)
class Source:
    """A split's source, with a key list if its folders are not the classes."""

    url: str
    key_list: str | None = None
    classes: tuple[str, ...] = ()  # by default, those of the source


@dataclass(frozen=True, slots=True)
class PreparedData:
    """A run's data sources. If ``val`` is None, there is no validation."""

    train: Source
    val: Source | None
    note: str | None = None  # which images are used, if it depends on what exists


def prepare_data(data: DataSpec, log: Callable[[str], None] = lambda _: None) -> PreparedData:
    """Return the sources in ``data``. If it has none, find or generate the image set of its kind.

    ``log`` receives progress messages while a set is generated.

    Raises:
        ConfigError: a set cannot be written.
        SourceNotFoundError: a local directory does not exist.
        SourceError: a directory contains something other than the set.
    """
    if data.train is None:
        if data.kind in PUBLISHED_SETS:
            return _published_or_drawn(data, log)
        if data.kind in MADE_SETS:
            return _splits_of(_draw(data, MADE_SETS[data.kind], log))
        return _splits_of(make_digits(data.directory or "data/digits"))
    url = _source_url(data.train, "data.train")
    train = Source(url, data.train_key_list)
    if data.val is None:
        return PreparedData(train, None)
    url = _source_url(data.val, "data.val")
    return PreparedData(train, Source(url, data.val_key_list))


def _published_or_drawn(data: DataSpec, log: Callable[[str], None]) -> PreparedData:
    published = PUBLISHED_SETS[data.kind]
    place = Path(data.directory or Path("data") / published.folder).expanduser().absolute()
    prepared = None if made_in(place) is not None else find_published(data.kind, place)
    if prepared is not None:
        note = f"the images are {data.kind} as published, in {place}"
        if prepared.val is None:
            note += "; there are no validation images"
        return replace(prepared, note=note)
    note = (
        f"the published {data.kind} is not in {place} (superdl data list shows the files it needs). The "
        f"images are drawn ones, {published.like}, so accuracies are not comparable with the published set's"
    )
    return replace(_splits_of(_draw(data, MADE_SETS[published.like], log)), note=note)


def _draw(data: DataSpec, made: MadeSet, log: Callable[[str], None]) -> Path:
    directory = Path(data.directory or default_directory(made, data.samples)).expanduser()
    samples, seed = data.samples, 0
    # Without data.samples, use an existing set of any size.
    if samples is None:
        existing = made_in(directory)
        if existing is not None and existing.get("name") == made.name:
            samples, seed = existing["counts"]["train"], existing.get("seed", 0)
    return make_set(made, directory, samples=samples, seed=seed, log=log)


def _splits_of(directory: Path) -> PreparedData:
    return PreparedData(Source(_file_url(directory / "train")), Source(_file_url(directory / "val")))


def _source_url(value: str, key: str) -> str:
    if "://" in value and not value.startswith("file://"):
        return value
    directory = Path(value.removeprefix("file://")).expanduser()
    if not directory.is_dir():
        raise SourceNotFoundError(f"{key}: there is no directory {directory.absolute()}")
    return _file_url(directory)


def _file_url(directory: Path) -> str:
    # Like all sources, the path is not percent-encoded.
    return f"file://{directory.resolve()}"


# ------------------------------------------------------------------------------------ published sets

_TRAIN = ("train", "training")
_VAL = ("val", "test", "valid", "testing")
_ANNOTATIONS = "val_annotations.txt"


def find_published(name: str, directory: Path) -> PreparedData | None:
    """Find the published set ``name`` in ``directory``. Return None if the directory is empty or missing."""
    directory = directory.expanduser().absolute()
    try:
        if not any(directory.iterdir()):
            return None
        train, val = _class_folders(directory, _TRAIN), _class_folders(directory, _VAL)
        if train is None:
            raise SourceError(
                f"{directory} does not contain {name} as published, {PUBLISHED_SETS[name].layout}. "
                "Use the directory that contains these files."
            )
        if name == "tiny-imagenet" and (directory / "val" / _ANNOTATIONS).is_file():
            return _with_annotations(directory, train)
        if val is None and any((directory / split).is_dir() for split in _VAL):
            raise SourceError(
                f"the classes of the validation images in {directory} are unknown, because they are not in "
                f"class folders. Sort them as in {PUBLISHED_SETS[name].layout}, or set data.train, data.val "
                "and data.val_key_list."
            )
        return PreparedData(Source(_file_url(train)), None if val is None else Source(_file_url(val)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(
            f"cannot read {name} in {directory}: {error.strerror} ({error.filename}). Set data.directory to "
            "a readable directory."
        ) from error


def _class_folders(directory: Path, names: tuple[str, ...]) -> Path | None:
    """Return the first folder in ``names`` with subfolders other than ``images``, or None."""
    for name in names:
        if any(entry.is_dir() and entry.name != "images" for entry in (directory / name).glob("*")):
            return directory / name
    return None


def _with_annotations(directory: Path, train: Path) -> PreparedData:
    """Write a key list for Tiny ImageNet's validation images, which all share one folder."""
    annotations = directory / "val" / _ANNOTATIONS
    # Each line has a file, its class and a box, separated by tabs.
    rows = [line.split("\t")[:2] for line in annotations.read_text(encoding="utf-8").splitlines()]
    if any(len(row) < 2 for row in rows):  # noqa: PLR2004  # file and class
        raise SourceError(f"{annotations} has a line without file and class. Unpack the archive again.")
    key_list = directory.with_name(f"{directory.name}-superdl") / "val.csv"
    content = "key,label\n" + "".join(f"{key},{label}\n" for key, label in sorted(rows))
    try:
        if not (key_list.is_file() and key_list.read_text(encoding="utf-8") == content):
            key_list.parent.mkdir(exist_ok=True)
            write_whole(content, key_list)
    except OSError as error:
        raise ConfigError(
            f"cannot write the classes of the validation images to {key_list}: {error.strerror}. Link the "
            "set into a writable directory (ln -s), and use the link."
        ) from error
    images = Source(_file_url(directory / "val" / "images"), _file_url(key_list))
    return PreparedData(Source(_file_url(train)), images)
