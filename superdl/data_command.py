"""``superdl data``: create and list image sets, and upload a directory to a bucket."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.options import above_zero
from superdl.super_wire.display import shown_lines

if TYPE_CHECKING:
    import argparse

_DIGITS_BYTES = 1797 * 4096
_MEGABYTE = 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="{make,push,list}")
    make = actions.add_parser(
        "make",
        help="create an image set",
        description="Create an image set, unless it exists. An incomplete set never appears.",
    )
    make.add_argument("name", metavar="NAME", help="a set listed by superdl data list")
    make.add_argument("--directory", metavar="DIR", help="output directory (default: data/NAME)")
    size = make.add_mutually_exclusive_group()
    size.add_argument("--samples", type=int, metavar="N", help="number of training images (default: all)")
    size.add_argument("--quick", action="store_true", help="create only enough images to try things out")
    make.add_argument("--seed", type=int, default=0, help="seed of the generated images (default: 0)")
    push = actions.add_parser(
        "push",
        help="upload a directory to S3",
        description="Upload all files of a directory to S3 in parallel, except those already there.",
    )
    push.add_argument("directory", metavar="DIR", help="directory to upload, with its subdirectories")
    push.add_argument("url", metavar="s3://BUCKET/PREFIX", help="destination prefix")
    push.add_argument("--workers", type=int, default=16, metavar="N", help="parallel uploads (default: 16)")
    push.add_argument("--json", action="store_true", help="print the result as JSON")
    list_parser = actions.add_parser(
        "list", help="list the sets", description="List the available sets and the size of each."
    )
    list_parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the chosen action."""
    {"list": _list, "make": _make, "push": _push}[arguments.action](arguments)
    return 0


def _push(arguments: argparse.Namespace) -> None:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from superdl.experiments.console import Console
    from superdl.experiments.data import push

    workers, console = above_zero("--workers", arguments.workers), Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        counts = push(
            Path(arguments.directory),
            arguments.url,
            workers=workers,
            done=lambda size_bytes, total: bar.update(task, advance=size_bytes, total=total),
        )
    if arguments.json:
        sys.stdout.write(json.dumps(counts | {"url": arguments.url}) + "\n")
        return
    sent = f"{counts['sent']:,} files ({counts['bytes'] / _MEGABYTE:,.1f} MB) uploaded to {arguments.url}"
    sys.stdout.write(f"{sent}, {counts['there']:,} were already there\n")


def _make(arguments: argparse.Namespace) -> None:
    from superdl.experiments.data import MADE_SETS, PUBLISHED_SETS, default_directory, make_digits, make_set
    from superdl.super_wire.errors import ConfigError

    def print_line(line: str) -> None:
        sys.stderr.write(shown_lines(f"{line}\n"))

    name: str = arguments.name
    if arguments.seed < 0:
        raise ConfigError(f"--seed must be an integer of 0 or more, not {arguments.seed}")
    if name == "digits":
        if arguments.samples is not None or arguments.quick or arguments.seed:
            raise ConfigError("the digits are 1,797 real scans: --samples, --quick and --seed do not apply")
        directory = make_digits(arguments.directory or "data/digits")
    elif name in MADE_SETS:
        made_set = MADE_SETS[name]
        samples = made_set.quick if arguments.quick else arguments.samples
        directory = make_set(
            made_set,
            arguments.directory or default_directory(made_set, samples, arguments.seed),
            samples=samples,
            seed=arguments.seed,
            log=print_line,
        )
    elif name in PUBLISHED_SETS:
        published = PUBLISHED_SETS[name]
        raise ConfigError(
            f"{name} must be downloaded: unpack it to data/{published.folder} ({published.layout}), "
            f"or run superdl data make {published.like} for a substitute"
        )
    else:
        raise ConfigError(f"NAME must be one of {', '.join(('digits', *MADE_SETS))}, not {name!r}")
    sys.stdout.write(
        f"{name} is in {directory}\n"
        f"to train on it: superdl run digits --set data.kind={name} --set 'data.directory={directory}'\n"
    )


def _list(arguments: argparse.Namespace) -> None:
    from superdl.experiments.data import PUBLISHED_SETS

    rows = _rows()
    if arguments.json:
        sys.stdout.write(json.dumps({"sets": rows}, indent=2) + "\n")
        return
    for row in rows:
        quick = "" if row["quick"] is None else f", {row['quick']:,} with --quick"
        there = f"; already in {', '.join(row['there'])}" if row["there"] else ""
        images = f"{row['train']:,} training and {row['val']:,} validation images"
        size = f"{row['bytes'] / _MEGABYTE:,.0f} MB on disk"
        sys.stdout.write(f"{row['name']}: {row['about']}\n  {images}, {size}{quick}{there}\n")
    sys.stdout.write("\nPublished sets that can be used as they are (data.kind), each with a substitute:\n")
    for published in PUBLISHED_SETS.values():
        location = f"data/{published.folder} or data.directory, {published.layout}"
        sys.stdout.write(f"  {published.name}: {location}; substitute: {published.like}\n")


def _rows() -> list[dict[str, Any]]:
    from superdl.experiments.data import DIGITS_FORMAT, MADE_SETS, PUBLISHED_SETS

    stand_ins = {published.like: published.name for published in PUBLISHED_SETS.values()}
    about = "10 classes of 64x64 JPEGs: scans of handwriting (scikit-learn's)"
    rows: list[dict[str, Any]] = [
        {"name": "digits", "about": about, **DIGITS_FORMAT["counts"], "bytes": _DIGITS_BYTES, "quick": None}
    ]
    for made_set in MADE_SETS.values():
        sizes = {"bytes": made_set.disk_bytes(made_set.train + made_set.val), "quick": made_set.quick}
        rows.append({"name": made_set.name, "about": made_set.about, **made_set.counts(), **sizes})
    for row in rows:
        row["stands_in_for"] = stand_ins.get(row["name"])
        row["there"] = [
            str(file.parent) for file in sorted(Path("data").glob(f"{row['name']}*/manifest.json"))
        ]
    return rows
