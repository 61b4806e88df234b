"""Turns a spec's `data` section into source URLs, writing a set first where it is asked for and not there.

What a URL holds is left to the coordinator, which lists it; only a missing local directory is refused early.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.experiments.data.making import made_in, make_digits, make_set
from superdl.experiments.data.published import find_published
from superdl.experiments.image_sets import MADE_SETS, PUBLISHED_SETS, MadeSet, default_directory
from superdl.super_wire.errors import ConfigError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.experiments.spec import DataSpec

__all__ = ["PreparedData", "Source", "prepare_data"]

_SCHEMES = ("file", "s3")


@dataclass(frozen=True, slots=True)
class Source:
    """Where one split's samples live, and the key list that names them where folders do not."""

    url: str
    key_list: str | None = None

    @property
    def local_directory(self) -> Path | None:
        """The directory of a ``file://`` source; None for any other."""
        return Path(self.url.removeprefix("file://")) if self.url.startswith("file://") else None

    @property
    def local_key_list(self) -> Path | None:
        """The CSV file on this machine that is the key list; None for any other."""
        if self.key_list is None or not self.key_list.lower().endswith(".csv"):
            return None
        path = self.key_list.removeprefix("file://")
        return None if "://" in path else Path(path).expanduser()


@dataclass(frozen=True, slots=True)
class PreparedData:
    """The sources of a run; without ``val`` nothing is validated.

    ``note`` says which images these are, where the spec leaves that to what is found.
    """

    train: Source
    val: Source | None
    note: str | None = None


def prepare_data(data: DataSpec, tell: Callable[[str], None] = lambda _: None) -> PreparedData:
    """Return the sources that ``data`` names; if none is named, its set is found or written.

    ``tell`` gets lines for people while a set is written.

    Raises:
        ConfigError: a URL has an unknown scheme or contradicts ``data.kind``, or a set cannot be written.
        SourceNotFoundError: a local directory does not exist.
        SourceError: a directory holds something else than the set, or a damaged one.

    """
    if data.train is None:
        if data.kind in PUBLISHED_SETS:
            return _published_or_made(data, tell)
        if data.kind in MADE_SETS:
            return _splits_of(_made(data, MADE_SETS[data.kind], tell))
        return _splits_of(make_digits(data.directory or "data/digits"))
    train = Source(_source_url(data.train, "data.train", data.kind), data.train_key_list)
    if data.val is None:
        return PreparedData(train, None)
    return PreparedData(train, Source(_source_url(data.val, "data.val", data.kind), data.val_key_list))


def _published_or_made(data: DataSpec, tell: Callable[[str], None]) -> PreparedData:
    """The published set where it is, else the drawn one that stands in for it, and never silently."""
    published = PUBLISHED_SETS[data.kind]
    place = Path(data.directory or Path("data") / published.folder).expanduser().absolute()
    if made_in(place) is None:
        layout = find_published(data.kind, place, tell)
        if layout is not None:
            note = f"the images are {data.kind} as published, in {place}"
            if data.samples is not None:
                note += "; all of them: data.samples is for sets that are drawn"
            if layout.val is None:
                note += "; there are no validation images"
                return PreparedData(Source(_file_url(layout.train)), None, note)
            key_list = None if layout.val_key_list is None else _file_url(layout.val_key_list)
            return PreparedData(
                Source(_file_url(layout.train)), Source(_file_url(layout.val), key_list), note
            )
    drawn = _splits_of(_made(data, MADE_SETS[published.like], tell))
    note = (
        f"{data.kind} as published is not in {place}: the images are {published.like}, which are drawn; "
        "accuracies do not compare with those of the published set"
    )
    return PreparedData(drawn.train, drawn.val, note)


def _made(data: DataSpec, made: MadeSet, tell: Callable[[str], None]) -> Path:
    """The made set, written if it is not there; one that is there serves in any size, unless one is named."""
    directory = Path(data.directory or default_directory(made, data.samples)).expanduser()
    samples, seed = data.samples, 0
    if samples is None:
        standing = made_in(directory)
        if standing is not None and standing.get("name") == made.name:
            samples, seed = standing["counts"]["train"], standing.get("seed", 0)
    return make_set(made, directory, samples=samples, seed=seed, tell=tell)


def _splits_of(directory: Path) -> PreparedData:
    return PreparedData(Source(_file_url(directory / "train")), Source(_file_url(directory / "val")))


def _source_url(value: str, key: str, kind: str) -> str:
    scheme, separator, rest = value.partition("://")
    if not separator:
        if kind == "url":
            raise ConfigError(f"{key} must be a URL (s3://bucket/prefix or file:///path), not {value!r}")
        return _existing(Path(value).expanduser(), key)
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"{key} has the unknown scheme {scheme!r}; allowed: s3://bucket/prefix, file:///path"
        )
    if scheme == "file":
        return _existing(Path(rest), key)
    if kind == "directory":
        raise ConfigError(f"{key} is {value!r}, but data.kind is directory; set data.kind=url")
    return value


def _existing(directory: Path, key: str) -> str:
    if not directory.is_dir():
        raise SourceNotFoundError(f"{key}: there is no directory {directory.absolute()}")
    return _file_url(directory)


def _file_url(directory: Path) -> str:
    """Return the directory's absolute real path as a URL; not percent-encoded, as sources are not."""
    return f"file://{directory.resolve()}"
