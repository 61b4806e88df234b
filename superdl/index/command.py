"""``superdl index SOURCE -o OUT``: write the key list of samples that lie in shards, or have label files."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from superdl.index.choices import LABELS
from superdl.index.writing import MOST_CLASSES
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import shown
from superdl.super_wire.sizes import counted

if TYPE_CHECKING:
    import argparse
    from collections import Counter
    from collections.abc import Callable

    from superdl.experiments.console import Console
    from superdl.index import Built

__all__ = ["add_arguments", "run"]

_LINE_EVERY_S = 10.0
_THREADS_MAX = 256
_CLASSES_SHOWN = 20
_NAME_LENGTH = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument(
        "source",
        nargs="+",
        help="s3://bucket/prefix, another bucket's URL, file:///directory or a path that holds tars, zips, "
        "TFRecords, Parquet files, or shards of MDS or LitData with their index.json; or images with label "
        "files beside them; or shards of one folder, as https://host/train-{0000..0099}.tar",
    )
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="OUT",
        help="the key list: .jsonl, .csv or .parquet, a path or s3://",
    )
    parser.add_argument(
        "--only", metavar="PATTERN", help="shards, or images, whose key is like this, such as 'train-*'"
    )
    parser.add_argument(
        "--split", metavar="NAME", help="the split that is read, where files or folders name several, or all"
    )
    parser.add_argument(
        "--key-at",
        choices=("first-dot", "last-dot"),
        default="first-dot",
        help="where the key of a file in an archive ends: at its first dot, as WebDataset has it, or at its "
        "last (s2.0.jpg goes with s2.0.cls)",
    )
    parser.add_argument(
        "--image-field",
        metavar="NAME",
        help="column, feature or extension of the image, where there are several",
    )
    parser.add_argument(
        "--label-field",
        metavar="NAME",
        help="column or feature of the label, extension of its file, or field of .json",
    )
    parser.add_argument(
        "--labels",
        choices=LABELS,
        default="auto",
        help="from where: what the shard or a file beside the image says, else the first folder (auto); "
        "numbers for ClassLabels; the folder that the image lies in; the shard's name; none; YOLO's boxes",
    )
    parser.add_argument(
        "--missing-label",
        metavar="TEXT",
        help="what stands for the label file of an image that has none: '' for no boxes, 0, ...",
    )
    parser.add_argument(
        "--coco", metavar="FILE", help="boxes out of instances_*.json, a path or s3://; SOURCE has the images"
    )
    parser.add_argument(
        "--fields",
        metavar="FIELDS",
        help="samples of several files: image=jpg,mask=png in tars and zips, or "
        "'image=images/*.jpg,mask=masks/*.png', equal where the * is",
    )
    parser.add_argument(
        "--threads", type=int, metavar="COUNT", help="shards read at a time (16; 4 of a directory)"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON on standard output")


def run(arguments: argparse.Namespace) -> int:
    """Index, and say what was found."""
    from superdl.experiments.console import Console  # --help needs none of this
    from superdl.index import Choices, build_index, fields_in
    from superdl.super_wire.redaction import keep_secrets_out_of_logs

    keep_secrets_out_of_logs()
    if arguments.threads is not None and not 0 < arguments.threads <= _THREADS_MAX:
        raise ConfigError(f"--threads is a number from 1 to {_THREADS_MAX}; not {arguments.threads}")
    if arguments.fields is not None and (arguments.image_field or arguments.coco):
        raise ConfigError("--fields says what the image is: leave out --image-field and --coco")
    options = {option.name: getattr(arguments, option.name) for option in dataclasses.fields(Choices)}
    options["fields"] = fields_in(arguments.fields) if arguments.fields is not None else ()
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with console.status("listing") if console.is_terminal else nullcontext() as status:
        built = build_index(
            arguments.source,
            arguments.out,
            Choices(**options),
            threads=arguments.threads,
            force=arguments.force,
            tell=_progress(console, status),
        )
    console.print("\n".join([_text(built), *_classes(built.classes)]))
    if arguments.json:
        sys.stdout.write(json.dumps(built.to_mapping(), indent=2) + "\n")
    return 0


def _progress(console: Console, status: Any) -> Callable[[int, int, int], None]:
    """A line that is written over on a terminal, a line now and then elsewhere."""
    last_s = time.monotonic()

    def tell(done: int, shards: int, samples: int) -> None:
        nonlocal last_s
        text = f"{done:,} of {counted(shards, 'shard')}, " * bool(done) + counted(samples, "sample")
        if status is not None:
            status.update(text)
        elif time.monotonic() >= last_s + _LINE_EVERY_S:
            last_s = time.monotonic()
            console.print(text)

    return tell


def _text(built: Built) -> str:
    formats = ", ".join(f"{count:,} {name}" for name, count in sorted(built.formats.items()))
    where = f" in {counted(built.shards, 'shard')} ({formats})" if built.shards else ""
    others = [
        f"{counted(number, thing)} {ending}"
        for number, thing, ending in (
            (built.passed_over, "other object", "passed over"),
            (built.empty, "empty member", "left out"),
            (built.incomplete, "sample", "without all fields left out"),
        )
        if number
    ]
    if built.unlabelled:
        others += [f"--missing-label stands for {built.unlabelled:,} of them, which have no label file"]
    if built.index_files:
        others += [
            f"{counted(built.index_files, 'index file')}, of which {built.indexes} say where members lie"
        ]
    line = f"{built.out}: {counted(built.samples, 'sample')}{where}, in {built.seconds:.1f} s"
    return "; ".join([line, *others])


def _classes(counts: Counter[Any]) -> list[str]:
    """The table of classes: the first of them, and how many there are."""
    if not counts:
        return []
    named = sorted(counts.items(), key=lambda item: (isinstance(item[0], str), item[0]))
    more = " or more" if len(counts) >= MOST_CLASSES else ""
    why = (
        " (every sample has one label: --labels and --label-field choose others)" if len(counts) == 1 else ""
    )
    lines = [f"classes: {len(counts):,}{more}{why}"]
    lines += [f"  {shown(str(name))[:_NAME_LENGTH]}  {count:,}" for name, count in named[:_CLASSES_SHOWN]]
    if len(named) > _CLASSES_SHOWN:
        lines.append(f"  and {len(named) - _CLASSES_SHOWN:,} more")
    return lines
