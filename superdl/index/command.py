"""``superdl index SOURCE -o OUT``: write a key list of the samples in shards."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from superdl.index import Choices, build_index, fields_in
from superdl.index.key_list import MOST_CLASSES
from superdl.super_wire.display import counted, keep_secrets_out_of_logs, shown
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from superdl.index import Built

_CLASSES_SHOWN = 20
_NAME_LENGTH = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument(
        "source",
        nargs="+",
        help="s3://bucket/prefix, another bucket's URL, file:///directory or a path that contains tars, "
        "zips, TFRecords, Parquet files, or shards of MDS or LitData with their index.json; or images with "
        "label files beside them; or shards of one folder, as https://host/train-{0000..0099}.tar",
    )
    listed = "the key list to write: .jsonl or .parquet, a path or s3://"
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help=listed)
    for option in dataclasses.fields(Choices):
        name = f"--{option.name.replace('_', '-')}"
        parser.add_argument(name, default=option.default, **option.metadata)
    parser.add_argument("--force", action="store_true", help="overwrite OUT")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")


def run(arguments: argparse.Namespace) -> int:
    """Index the source, and print the result."""
    from superdl.experiments.console import Console  # --help does not need it
    from superdl.experiments.output import tell_json

    keep_secrets_out_of_logs()
    if arguments.fields and (arguments.image_field or arguments.coco):
        raise ConfigError("--fields already defines the image: omit --image-field and --coco")
    options = {option.name: getattr(arguments, option.name) for option in dataclasses.fields(Choices)}
    options["fields"] = options["fields"] and fields_in(options["fields"])
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with console.status("listing") as status:

        def progress(done: int, shards: int, samples: int) -> None:
            of_shards = f"{done:,} of {counted(shards, 'shard')}, " * bool(done)
            status.update(of_shards + counted(samples, "sample"))

        choices = Choices(**options)
        built = build_index(
            arguments.source, arguments.out, choices, force=arguments.force, progress=progress
        )
    console.print("\n".join([_summary(built), *_classes(built)]))
    tell_json(dataclasses.asdict(built), shown=arguments.json)
    return 0


def _summary(built: Built) -> str:
    formats = ", ".join(f"{count:,} {name}" for name, count in sorted(built.formats.items()))
    shards_text = f" in {counted(built.shards, 'shard')} ({formats})" if built.shards else ""
    notes = [
        (built.passed_over, "other object", " skipped"),
        (built.empty, "empty member", " skipped"),
        (built.incomplete, "sample", " skipped because of missing fields"),
        (built.unlabelled, "sample", " with --missing-label instead of a label file"),
    ]
    line = f"{built.out}: {counted(built.samples, 'sample')}{shards_text}, in {built.seconds:.1f} s"
    return "; ".join([line, *(counted(count, noun) + note for count, noun, note in notes if count)])


def _classes(built: Built) -> list[str]:
    counts = built.classes
    if not counts:
        return []
    ordered = sorted(counts.items(), key=lambda item: (isinstance(item[0], str), item[0]))
    note = " or more" if len(counts) >= MOST_CLASSES else ""
    if len(counts) == 1:
        note = " (all samples have the same label; --labels and --label-field choose others)"
    lines = [f"classes: {len(counts):,}{note}"]
    lines += [f"  {shown(str(name))[:_NAME_LENGTH]}  {count:,}" for name, count in ordered[:_CLASSES_SHOWN]]
    if len(ordered) > _CLASSES_SHOWN:
        lines.append(f"  and {len(ordered) - _CLASSES_SHOWN:,} more")
    return lines
