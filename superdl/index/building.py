"""Write a key list for a source's shards or its loose images, in parallel."""

from __future__ import annotations

import os
import posixpath
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from superdl.coordinator.catalog import list_objects, parse_source, pinned
from superdl.index import formats
from superdl.index.archives import tar_members, zip_members
from superdl.index.choices import Choices, keys_of_split
from superdl.index.key_list import Labelling, key_list_at, rows_of
from superdl.index.loose import LooseImages
from superdl.index.shard import UNPACK, ShardError, Shards
from superdl.super_wire.errors import ConfigError, SourceEmptyError
from superdl.super_wire.run_directory import temporary_directory
from superdl.super_wire.source_url import is_hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from superdl.index.key_list import Rows
    from superdl.index.shard import Member, Shard

    Reader = Callable[[Shard, Choices], Iterator[Member]]
    Result = tuple[str, Rows, int, int]  # format, rows, empty members, incomplete samples
    Step = Callable[[], Result]

# Extension of a shard -> its reader; shards of MDS and LitData are named by their index.json.
_FORMATS: dict[str, Reader] = {
    ".tar": tar_members,
    ".zip": zip_members,
    ".tfrecord": formats.tfrecord_members,
    ".tfrecords": formats.tfrecord_members,
    ".parquet": formats.parquet_members,
}

_SHARD_OF = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")  # TensorFlow's names: train-00000-of-01024 is a TFRecord
_PACKED = re.compile(
    r"(\.(tar|tfrecords?|mds)\.(?!(idx|index)$)\w+|\.t[gbx]z2?|-of-[0-9]{5}\.gz|\.zstd\.bin)$"
)
_THREADS, _BUCKET_THREADS = 4, 16
_AHEAD = 4  # shards per thread that may wait to be written
_IMAGES_AT_A_TIME = 256


@dataclass(slots=True)
class Built:
    """Statistics about a written key list. ``incomplete`` counts samples with missing fields."""

    out: str
    samples: int = 0
    shards: int = 0
    passed_over: int = 0  # objects that are neither shards nor images
    empty: int = 0
    incomplete: int = 0
    unlabelled: int = 0  # images without a label file
    seconds: float = 0.0
    formats: dict[str, int] = field(default_factory=dict)
    classes: dict[Any, int] = field(default_factory=dict)  # samples of each of up to 100,000 labels

    def add(self, form: str, rows: Rows, empty: int, incomplete: int) -> None:
        """Count the samples of a shard, or of loose images if ``form`` is empty."""
        self.samples += len(rows)
        self.empty += empty
        self.incomplete += incomplete
        if form:
            self.shards += 1
            self.formats[form] = self.formats.get(form, 0) + 1


def build_index(
    sources: Sequence[str],
    out: str,
    choices: Choices,
    *,
    force: bool = False,
    progress: Callable[[int, int, int], None] = lambda *_: None,
) -> Built:
    """Write a key list for a source's shards or, if it has none, for its loose images.

    Args:
        sources: a URL or path, or several shards in one folder, as web servers require.
        out: path or ``s3://`` URL of a ``.jsonl`` or ``.parquet`` file.
        choices: the user's choices.
        force: overwrite ``out``.
        progress: called with the numbers of finished shards, of all shards, and of samples found.

    Raises:
        ConfigError: an argument is invalid, or ``out`` exists.
        SourceError: the source cannot be read or has no samples, a label is wrong, or a shard is corrupt.
    """
    begin_s = time.monotonic()
    folder, shard_names = _by_folder(sources)
    if (choices.coco or choices.labels == "yolo") and not out.endswith(".jsonl"):
        raise ConfigError(
            f"-o {out!r}: images can have any number of boxes, so use .jsonl, which supports lists"
        )
    if shard_names and choices.of_loose_images:
        raise ConfigError(f"{folder}: finding labels beside images needs a listing, so pass only this folder")
    built, stop = Built(out), threading.Event()
    with key_list_at(out, force=force) as write, tempfile.TemporaryFile(dir=temporary_directory()) as buffer:
        source = pinned(parse_source(folder))
        labelling = Labelling(source.url, buffer)
        shards = Shards(source, stop)
        if shard_names:  # an index may name more
            steps = _steps_of_shards(shards, [*shard_names, *_layouts(shards, shard_names)], choices, built)
        else:
            steps = _steps_of_folder(shards, choices, built)
        threads = _THREADS if source.is_file else _BUCKET_THREADS
        for form, rows, empty, incomplete in _in_order(steps, threads, stop):
            labelling.take(rows)
            built.add(form, rows, empty, incomplete)
            progress(built.shards, len(steps), built.samples)
        if not built.samples:
            sample = "an image with all its fields" if choices.fields else "an image"
            why = f"{built.shards:,} shards were read, but none contains {sample}"
            raise SourceEmptyError(f"{source.url}: {why}: set its extension or column with --image-field")
        write(labelling.labelled())
    built.classes = dict(labelling.counts)
    built.seconds = round(time.monotonic() - begin_s, 3)
    return built


def _by_folder(sources: Sequence[str]) -> tuple[str, list[str]]:
    """Return the folder of the shards, and their names if they were listed individually."""
    is_web = sources[0].lower().startswith(("https://", "http://"))
    if len(sources) == 1 and not is_web:
        return sources[0], []
    folders, _, names = zip(*(source.rpartition("/") for source in sources), strict=True)
    if len(set(folders)) > 1 or not all(names) or "{" in names[0]:
        why = "a web server cannot list files, so pass the URL of each shard, all from one folder"
        raise ConfigError(
            f"{sources[0]}: {why}. The shell expands https://host/train-{{0000..0099}}.tar unless quoted"
        )
    return folders[0], [unquote(name) if is_web else name for name in dict.fromkeys(names)]


def _steps_of_folder(shards: Shards, choices: Choices, built: Built) -> list[Step]:
    """Return the steps that read a source. Each step reads one shard, or some loose images."""
    source = shards.root
    here = source.directory if source.is_file else source.url.rstrip("/")
    out = os.path.realpath(built.out) if source.is_file else built.out  # the list being replaced
    pairs = zip(*list_objects(source.url), strict=True)
    entries = sorted((key.decode()[len(source.prefix) :], version.decode()) for key, version in pairs)
    versions = {key: version for key, version in entries if f"{here}/{key}" != out and not is_hidden(key)}
    chosen = [key for key in versions if choices.takes(key)]
    images = [key for key in chosen if choices.is_image(key)]
    shard = any(_format_of(key) or _is_index(key) or _PACKED.search(key.lower()) for key in chosen)
    if (shard or not images) and not choices.of_loose_images:
        return _steps_of_shards(shards, list(versions), choices, built)
    if not choices.coco:
        chosen = keys_of_split(images, choices.split, source.url, of_shards=False)
    loose = LooseImages(shards, versions, chosen, choices)
    built.passed_over, built.unlabelled = loose.skipped, loose.unlabelled

    def read(start: int) -> Result:
        return "", loose.rows(loose.keys[start : start + _IMAGES_AT_A_TIME]), 0, 0

    return [partial(read, start) for start in range(0, len(loose.keys), _IMAGES_AT_A_TIME)]


def _steps_of_shards(shards: Shards, keys: Sequence[str], choices: Choices, built: Built) -> list[Step]:
    """Return the steps that read the chosen split: its shards, or its members in archives."""
    readers = readers_of(shards, keys, choices)
    built.passed_over = len({*keys}) - len(readers)
    other_forms = sorted({form for form, _ in readers.values()} - {"tar", "zip"})
    if choices.fields and other_forms:
        raise ConfigError(f"--fields is for tars, zips and loose images, but this source has {other_forms}")
    chosen, member_choices = list(readers), choices
    try:
        chosen = keys_of_split(chosen, choices.split, shards.root.url, of_shards=True)
        member_choices = replace(choices, split=None)
    except ConfigError:
        if choices.split is None or other_forms:
            raise

    def read(key: str) -> Result:
        form, reader = readers[key]
        shard = shards.open(key)
        return form, *rows_of(shard, reader(shard, member_choices), member_choices)

    return [partial(read, key) for key in chosen]


def _layouts(shards: Shards, keys: Collection[str]) -> dict[str, formats.Layout]:
    files = (shards.open(key) for key in keys if _is_index(key))
    return {key: layout for file in files for key, layout in formats.layouts_of(file).items()}


def readers_of(shards: Shards, keys: Collection[str], choices: Choices) -> dict[str, tuple[str, Reader]]:
    """Return the format and reader of each shard, by key, sorted bytewise."""
    layouts, known, readers = _layouts(shards, keys), {*keys}, dict[str, tuple[str, "Reader"]]()
    for key in sorted(filter(choices.takes, known), key=str.encode):
        if key in layouts:
            readers[key] = layouts[key].format, partial(formats.chunk_members, layout=layouts[key])
        elif extension := _format_of(key):
            readers[key] = extension.removeprefix("."), _FORMATS[extension]
        elif _PACKED.search(key.lower()):
            why = f"compressed as a whole, so members cannot be read individually: {UNPACK}"
            raise ShardError(f"{shards.url(key)}: {why}; or exclude it with --only")
    url = shards.root.url
    if missing := sorted({key for key in layouts if choices.takes(key)} - known):
        why = f"{formats.INDEX_FILE} lists {len(missing):,} shards that do not exist, such as {missing[0]}"
        raise ShardError(f"{url}: {why}")
    if not readers:
        like = f" whose key matches {choices.only!r}" if choices.only else ""
        forms = f"{', '.join(_FORMATS)}, or of MDS or LitData with their {formats.INDEX_FILE}"
        raise SourceEmptyError(f"{url} contains neither images nor shards{like} ({forms})")
    return readers


def _is_index(key: str) -> bool:
    return posixpath.basename(key) == formats.INDEX_FILE


def _format_of(key: str) -> str:
    """Return a shard's format as an extension, judging by its name, or an empty string for other files."""
    extension = posixpath.splitext(key)[1].lower()
    return extension if extension in _FORMATS else ".tfrecord" if _SHARD_OF.search(key) else ""


def _in_order(steps: Sequence[Step], threads: int, stop: threading.Event) -> Iterator[Result]:
    with ThreadPoolExecutor(threads, thread_name_prefix="super-index") as pool:
        try:
            # A few at a time: map() would submit all, and keep the members of all shards in memory.
            for start in range(0, len(steps), threads * _AHEAD):
                yield from pool.map(lambda step: step(), steps[start : start + threads * _AHEAD])
        finally:
            stop.set()  # for those still being read, if this ends early
