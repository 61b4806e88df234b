"""Turns a spec's `data` section into source URLs, writing the built-in set first where it is asked for.

What a URL holds is left to the coordinator, which lists it; only a missing local directory is refused early.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.data.digits import make_digits
from super_wire.errors import ConfigError, SourceNotFoundError

if TYPE_CHECKING:
    from experiments.spec import DataSpec

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


@dataclass(frozen=True, slots=True)
class PreparedData:
    """The sources of a run; without ``val`` nothing is validated."""

    train: Source
    val: Source | None


def prepare_data(data: DataSpec) -> PreparedData:
    """Return the sources that ``data`` names; the digits are written if no source is named.

    Raises:
        ConfigError: a URL has an unknown scheme or contradicts ``data.kind``.
        SourceNotFoundError: a local directory does not exist.

    """
    if data.train is None:
        directory = make_digits(data.directory)
        return PreparedData(Source(_file_url(directory / "train")), Source(_file_url(directory / "val")))
    train = Source(_source_url(data.train, "data.train", data.kind), data.train_key_list)
    if data.val is None:
        return PreparedData(train, None)
    return PreparedData(train, Source(_source_url(data.val, "data.val", data.kind), data.val_key_list))


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
