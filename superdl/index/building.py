"""Goes over the shards of a source, several at a time, and writes their members down in the order of keys; or
over the label files of images that lie in none.

Memory is bounded by the members of the few shards that are read at a time.
"""

from __future__ import annotations

import os
import posixpath
import re
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from superdl.index.archives import tar_members, zip_members
from superdl.index.choices import Choices, keys_of_split
from superdl.index.indexes import INDEX_FILE, Layout, chunk_members, index_files, index_of_tar, layouts_of
from superdl.index.loose import LooseImages
from superdl.index.parquet import parquet_members
from superdl.index.rows import rows_of
from superdl.index.shard import UNPACK, ShardError, ShardFormatError, Shards
from superdl.index.tfrecord import tfrecord_members
from superdl.index.writing import Labelling, check_out, write_list
from superdl.super_wire.errors import ConfigError, SourceEmptyError
from superdl.super_wire.hidden_names import is_hidden
from superdl.super_wire.request import is_row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from superdl.coordinator.catalog import Source
    from superdl.index.rows import Rows
    from superdl.index.shard import Member, Shard

    Reader = Callable[[Shard, Choices], Iterator[Member]]
    Step = tuple[str, Callable[[], tuple[Rows, int, int]]]  # format, and what reads it

__all__ = ["FORMATS", "Built", "Job", "build_index", "jobs_of"]

FORMATS: dict[str, Reader] = {
    ".tar": tar_members,
    ".zip": zip_members,
    ".tfrecord": tfrecord_members,
    ".tfrecords": tfrecord_members,
    ".parquet": parquet_members,
}
"""Extension of a shard -> its reader, which gives the members, or raises ``ShardError`` for what is cut off,
broken, or cannot be read in place; those of MDS and LitData are named by their index.json.
"""

_SHARD_OF = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")  # TensorFlow's names: train-00000-of-01024 is a TFRecord
_PACKED = re.compile(r"(\.tar\.\w+|\.t[gbx]z2?|\.tfrecords?\.\w+|-of-[0-9]{5}\.gz|\.mds\.\w+|\.zstd\.bin)$")
_THREADS, _BUCKET_THREADS = 4, 16
_AHEAD = 2  # shards for each thread that may wait to be written
_IMAGES_AT_A_TIME = 256


@dataclass(slots=True)
class Built:
    """What was written. ``empty`` members are left out, as are ``incomplete`` samples, which lack a field. Of
    the ``index_files`` beside shards, ``indexes`` say where members of tars lie.
    """

    out: str
    samples: int = 0
    shards: int = 0
    passed_over: int = 0  # objects that are neither shard nor image
    index_files: int = 0
    indexes: int = 0
    empty: int = 0
    incomplete: int = 0
    unlabelled: int = 0  # images without a label file
    member_bytes: int = 0
    seconds: float = 0.0
    formats: Counter[str] = field(default_factory=Counter)
    classes: Counter[Any] = field(default_factory=Counter)  # samples of each label, of up to 100,000

    def add(self, form: str, rows: Rows, empty: int, incomplete: int) -> None:
        """Count the samples of a shard; of loose images where the format is empty."""
        self.samples += len(rows)
        self.empty += empty
        self.incomplete += incomplete
        if form:
            self.shards += 1
            self.formats[form] += 1
            self.member_bytes += sum(row["length"] for row in rows if not is_row(row["encoding"]))

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        classes = {str(name): count for name, count in self.classes.items()}
        return {**asdict(self), "formats": dict(self.formats), "classes": classes}


class Job(NamedTuple):
    """A shard to be read."""

    key: str
    format: str
    reader: Reader

    def read(self, shards: Shards, choices: Choices) -> tuple[Rows, int, int]:
        """Its rows, how many members are empty, and how many samples lack a field."""
        shard = shards.open(self.key)
        return rows_of(shard, self.reader(shard, choices), choices)


def build_index(
    sources: Sequence[str],
    out: str,
    choices: Choices,
    *,
    threads: int | None = None,
    force: bool = False,
    tell: Callable[[int, int, int], None] = lambda *_: None,
) -> Built:
    """Write the key list of a source's shards; where it has none, of its images and the labels beside them.

    Args:
        sources: ``s3://bucket/prefix``, another bucket's URL, ``file:///directory`` or a path; or several
            shards of one folder, which web servers need, since they list nothing.
        out: path or ``s3://`` URL of a ``.csv``, ``.jsonl`` or ``.parquet`` file.
        choices: the user's, of samples.
        threads: shards read at a time; ``None``: 16 of a bucket, 4 of a directory.
        force: replace what is at ``out``.
        tell: called with shards done, shards in all, and samples found.

    Raises:
        ConfigError: an argument is wrong, or something is at ``out``.
        SourceError: the source cannot be read, holds no shard or no sample (``SourceEmptyError``), a label
            file is missing or wrong, or a shard is broken (``ShardError``) or in a form that cannot be read
            in place (``ShardFormatError``).
    """
    from superdl.coordinator.catalog import parse_source, pinned
    from superdl.lambda_prefetch.s3_lean_client import close_lean_clients

    check_out(out, force=force)
    if (choices.coco or choices.labels == "yolo") and not out.endswith(".jsonl"):
        raise ConfigError(
            f"-o {out!r}: boxes are as many as an image has: write .jsonl, which holds such lists"
        )
    begin_s = time.monotonic()
    folder, named = _named(sources)
    if named and choices.of_loose_images:
        raise ConfigError(
            f"{sources[0]}: labels beside images are found in a listing: name their folder alone"
        )
    place, built, stop = pinned(parse_source(folder)), Built(out), threading.Event()
    versions = {} if named else _listed(place, out)
    threads = threads or (_THREADS if place.is_file else _BUCKET_THREADS)
    labelling, shards = Labelling(place.url), Shards(place, stop)
    try:
        chosen = [key for key in named or versions if choices.takes(key)]
        loose = not named and any(map(choices.is_image, chosen)) and not any(map(_may_be_shard, chosen))
        if loose or choices.of_loose_images:
            steps = _steps_of_images(shards, place.url, versions, chosen, choices, built)
        else:
            keys = named or list(versions)
            steps = _steps_of_shards(shards, place.url, keys, choices, built, named=bool(named))
        for form, (rows, empty, incomplete) in _in_order(steps, threads, stop):
            labelling.take(rows)
            built.add(form, rows, empty, incomplete)
            tell(built.shards, len(steps), built.samples)
        if not built.samples:
            raise SourceEmptyError(
                f"{place.url}: {built.shards:,} shards were read, and none holds an image"
                f"{' with all its fields' * bool(choices.fields)}: "
                "name its extension or column by --image-field or --fields"
            )
        write_list(out, labelling.labelled())
        built.classes = labelling.counts
    finally:
        labelling.close()
        shards.close()
        close_lean_clients()
    built.seconds = round(time.monotonic() - begin_s, 3)
    return built


def _named(sources: Sequence[str]) -> tuple[str, list[str]]:
    """The folder that holds shards, and their names, where these are named one by one."""
    of_web = sources[0].lower().startswith(("https://", "http://"))
    if len(sources) == 1 and not of_web:
        return sources[0], []
    folders, _, names = zip(*(source.rpartition("/") for source in sources), strict=True)
    if len(set(folders)) > 1 or not all(names) or "{" in names[0]:
        raise ConfigError(
            f"{sources[0]}: name shards of one folder, one by one, since a web server lists nothing: a shell "
            "makes their names of https://host/train-{0000..0099}.tar, without quotes"
        )
    return folders[0], [unquote(name) if of_web else name for name in dict.fromkeys(names)]


def _listed(place: Source, out: str) -> dict[str, str]:
    """Key and version of all objects but hidden ones and the list that is replaced, sorted."""
    from superdl.coordinator.catalog import list_objects

    root, own = (place.directory, os.path.realpath(out)) if place.is_file else (place.url.rstrip("/"), out)
    pairs = sorted(
        (key.decode()[len(place.prefix) :], version.decode())
        for key, version in zip(*list_objects(place.url), strict=True)
    )
    return {key: version for key, version in pairs if f"{root}/{key}" != own and not is_hidden(key)}


def _may_be_shard(key: str) -> bool:
    return bool(_format_of(key) or posixpath.basename(key) == INDEX_FILE or _PACKED.search(key.lower()))


def _format_of(key: str) -> str:
    """The extension by which a shard's name tells its format; empty where it tells none."""
    extension = posixpath.splitext(key)[1].lower()
    return extension if extension in FORMATS else ".tfrecord" if _SHARD_OF.search(key) else ""


def _steps_of_images(
    shards: Shards, url: str, versions: dict[str, str], chosen: list[str], choices: Choices, built: Built
) -> list[Step]:
    """Reads of some images each; of a split, by their folders."""
    if not choices.coco:
        chosen = list(filter(choices.is_image, chosen))
        chosen = keys_of_split(chosen, choices.split, url, of_shards=False)
    images = LooseImages(shards, url, versions, chosen, choices)
    built.passed_over, built.unlabelled = images.others, images.unlabelled

    def read(start: int) -> tuple[Rows, int, int]:
        return images.rows(images.keys[start : start + _IMAGES_AT_A_TIME]), 0, 0

    return [("", partial(read, start)) for start in range(0, len(images.keys), _IMAGES_AT_A_TIME)]


def _steps_of_shards(
    shards: Shards, url: str, keys: Sequence[str], choices: Choices, built: Built, *, named: bool
) -> list[Step]:
    """Reads of the shards of a split; where no name of a shard tells one, folders in archives do."""
    indexes = index_files(shards, keys)
    jobs, others = jobs_of(shards, keys, choices, url, indexes, named=named)
    built.passed_over, built.index_files = others - len(indexes), len(indexes)
    of_others = sorted({job.format for job in jobs} - {"tar", "zip"})
    try:
        of_split = {*keys_of_split([job.key for job in jobs], choices.split, url, of_shards=True)}
    except ConfigError:
        if choices.split is None or of_others:
            raise
    else:
        jobs = [job for job in jobs if job.key in of_split]
        choices = replace(choices, split=None)
    if choices.fields and of_others:
        raise ConfigError(f"--fields are of tars, zips and loose images; here are {of_others}")
    built.indexes = sum(job.format == "tar" and bool(index_of_tar(job.key, indexes)) for job in jobs)
    return [(job.format, partial(job.read, shards, choices)) for job in jobs]


def jobs_of(
    shards: Shards,
    keys: Sequence[str],
    choices: Choices,
    url: str,
    indexes: Collection[str] = (),
    *,
    named: bool = False,
) -> tuple[list[Job], int]:
    """The shards among objects, sorted by the bytes of their keys, and how many others there are.

    ``indexes`` are the index files among them. Where the user ``named`` the objects, an index of shards among
    them adds those that it names.
    """
    layouts: dict[str, Layout] = {}
    for key in keys:
        if posixpath.basename(key) == INDEX_FILE:
            layouts |= layouts_of(shards.open(key))
    keys = sorted({*keys, *layouts}) if named else keys
    jobs = []
    for key in filter(choices.takes, keys):
        if key in layouts:
            jobs.append(Job(key, layouts[key].format, partial(chunk_members, layout=layouts[key])))
        elif extension := _format_of(key):
            index = index_of_tar(key, indexes) if extension == ".tar" else None
            reader = partial(tar_members, shards=shards, index=index) if index else FORMATS[extension]
            jobs.append(Job(key, extension.removeprefix("."), reader))
        elif key not in indexes and _PACKED.search(key.lower()):
            raise ShardFormatError(
                f"{url.rstrip('/')}/{key}: it is compressed as a whole, so that no member can be read "
                f"alone: {UNPACK}; or pass over it by --only"
            )
    if gone := sorted(set(filter(choices.takes, layouts)) - set(keys)):
        raise ShardError(
            f"{url}: {INDEX_FILE} names {len(gone):,} shards that are not there, such as {gone[0]}"
        )
    if not jobs:
        like = f" whose key is like {choices.only!r}" if choices.only else ""
        raise SourceEmptyError(
            f"{url} holds no shard{like} ({', '.join(FORMATS)}, or those of MDS and LitData that an "
            f"{INDEX_FILE} names)"
        )
    return sorted(jobs, key=lambda job: job.key.encode()), len(keys) - len(jobs)


def _in_order(
    steps: Sequence[Step], threads: int, stop: threading.Event
) -> Iterator[tuple[str, tuple[Rows, int, int]]]:
    """The format and result of each step, in their order; few are taken ahead."""
    with ThreadPoolExecutor(threads, thread_name_prefix="super-index") as pool:
        rest = iter(steps)
        pending = deque((form, pool.submit(read)) for form, read in islice(rest, threads * _AHEAD))
        try:
            while pending:
                form, future = pending.popleft()
                result = future.result()
                pending.extend((later, pool.submit(read)) for later, read in islice(rest, 1))
                yield form, result
        finally:
            stop.set()  # for those that are read still, where this ends early
            pool.shutdown(wait=False, cancel_futures=True)
