"""Goes over the shards of a source, several at a time, and writes their members down in the order of keys; or
over the label files of images that lie in none.

Memory is bounded by the members of the few shards that are read at a time.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from superdl.index.archives import tar_members, zip_members
from superdl.index.chunks import INDEX_FILE, Layout, chunk_members, layouts_of
from superdl.index.classes import EVERY_SPLIT, Labelling, folders_of, keys_of_split
from superdl.index.fields import columns_of, with_fields
from superdl.index.index_files import index_files, index_of_tar
from superdl.index.loose import loose_readers
from superdl.index.parquet import parquet_members
from superdl.index.shard import LABELS, Choices, Member, ShardError, ShardFormatError, Shards
from superdl.index.tfrecord import tfrecord_members
from superdl.index.writing import Row, check_out, writing_to
from superdl.super_wire.errors import ConfigError, SourceEmptyError
from superdl.super_wire.hidden_names import is_hidden
from superdl.super_wire.request import Limits, is_row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from superdl.index.shard import Label, Shard

    Reader = Callable[[Shard, Choices], Iterator[Member]]

__all__ = ["FORMATS", "Built", "build_index"]

FORMATS: dict[str, Reader] = {
    ".tar": tar_members,
    ".zip": zip_members,
    ".tfrecord": tfrecord_members,
    ".tfrecords": tfrecord_members,
    ".parquet": parquet_members,
}
"""Extension of a shard -> what finds its members; those of MDS and LitData are named by their index.json."""

_SHARD_OF = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")  # TensorFlow's names: train-00000-of-01024 is a TFRecord
_PACKED = re.compile(r"(\.tar\.\w+|\.t[gbx]z2?|\.tfrecords?\.\w+|-of-[0-9]{5}\.gz|\.mds\.\w+|\.zstd\.bin)$")
_THREADS, _BUCKET_THREADS = 4, 16
_AHEAD = 2  # shards for each thread that may wait to be written
_NAME_BYTES = 4096
_MEMBER_BYTES = Limits().object_bytes


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
    formats: dict[str, int] = field(default_factory=dict)
    classes: Counter[Any] = field(default_factory=Counter)  # samples of each label, of up to 100,000

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "classes": {str(name): count for name, count in self.classes.items()}}


@dataclass(frozen=True, slots=True)
class _Job:
    key: str
    format: str
    reader: Any  # of a shard a Reader, of some loose images what gives their rows


def build_index(  # noqa: PLR0915  # one story: list, read, write
    sources: Sequence[str],
    out: str,
    choices: Choices,
    *,
    only: str | None = None,
    split: str | None = None,
    threads: int | None = None,
    force: bool = False,
    tell: Callable[[int, int, int], None] = lambda *_: None,
) -> Built:
    """Write the key list of a source's shards; where it has none, of its images and the labels beside them.

    Args:
        sources: ``s3://bucket/prefix``, another bucket's URL, ``file:///directory`` or a path; or several
            shards of one folder, which web servers need, since they list nothing.
        out: path or ``s3://`` URL of a ``.csv``, ``.jsonl`` or ``.parquet`` file.
        choices: what the user says of the samples.
        only: a pattern such as ``train-*`` for keys of shards or images, relative to the source.
        split: the one that is read of several that files or folders name; ``all``: all of them.
        threads: shards read at a time; ``None``: 16 of a bucket, 4 of a directory.
        force: replace what is at ``out``.
        tell: told shards done, shards in all, and samples found.

    Raises:
        ConfigError: an argument is wrong, or something is at ``out``.
        SourceError: the source cannot be read, holds no shard or no sample (``SourceEmptyError``), a label
            file is missing or wrong, or a shard is broken (``ShardError``) or in a form that cannot be read
            in place (``ShardFormatError``).
    """
    from superdl.coordinator.catalog import list_objects, parse_source, pinned
    from superdl.lambda_prefetch.s3_lean_client import close_lean_clients

    check_out(out, force=force)
    if (choices.coco or choices.labels == "yolo") and not out.endswith(".jsonl"):
        raise ConfigError(
            f"-o {out!r}: boxes are as many as an image has: write .jsonl, which holds such lists"
        )
    begin_s = time.monotonic()
    folder, named = _named(sources)
    place, built, stop = pinned(parse_source(folder)), Built(out), threading.Event()
    if named and choices.of_loose_images:
        raise ConfigError(
            f"{sources[0]}: labels beside images are found in a listing: name their folder alone"
        )
    listed = () if named else zip(*list_objects(place.url), strict=True)
    every = {key.decode()[len(place.prefix) :]: version.decode() for key, version in listed}
    root, place_of_out = (
        (place.directory, os.path.realpath(out)) if place.is_file else (place.url.rstrip("/"), out)
    )
    # Without the list that is replaced.
    every = {
        key: version
        for key, version in every.items()
        if f"{root}/{key}" != place_of_out and not is_hidden(key)
    }
    keys = named or sorted(every)
    chosen = [key for key in keys if only is None or fnmatch.fnmatchcase(key, only)]
    loose = not named and any(map(choices.is_image, chosen)) and not any(map(_may_be_shard, chosen))
    shards: Shards | None = None
    labelling = Labelling(place.url)
    try:
        if loose or choices.of_loose_images:
            chosen = chosen if choices.coco else _images(chosen, choices, split, place.url)
            readers, built.passed_over, built.unlabelled = loose_readers(place, every, chosen, choices)
            jobs, read = [_Job("", "", reader) for reader in readers], _loose_rows
        else:
            shards = Shards(place, stop)
            indexes = index_files(shards, keys)
            jobs, others = _jobs(shards, keys, only, place.url, indexes, listed=not named)
            jobs, choices = _of_split(jobs, choices, split, place.url)
            if choices.fields and (formats := {job.format for job in jobs} - {"tar", "zip"}):
                raise ConfigError(f"--fields are of tars, zips and loose images; here are {sorted(formats)}")
            built.passed_over, built.index_files = others - len(indexes), len(indexes)
            built.indexes = sum(job.format == "tar" and bool(index_of_tar(job.key, indexes)) for job in jobs)
            read = partial(_rows, shards, choices)
        for job, rows, empty, incomplete in _read_all(
            read, jobs, threads or (_THREADS if place.is_file else _BUCKET_THREADS), stop
        ):
            labelling.take(rows)
            built.samples, built.incomplete = built.samples + len(rows), built.incomplete + incomplete
            if shards is not None:
                built.shards, built.empty = built.shards + 1, built.empty + empty
                built.member_bytes += sum(row.length for row in rows if not is_row(row.encoding))
                built.formats[job.format] = built.formats.get(job.format, 0) + 1
            tell(built.shards, len(jobs), built.samples)
        if not built.samples:
            raise SourceEmptyError(
                f"{place.url}: {built.shards:,} shards were read, and none holds an image"
                f"{' with all its fields' * bool(choices.fields)}: "
                "name its extension or column by --image-field or --fields"
            )
        with writing_to(out) as sink:
            for rows in labelling.labelled():
                sink.write(rows)
        built.classes = labelling.counts
    finally:
        labelling.close()
        if shards is not None:
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


def _of_split(jobs: list[_Job], choices: Choices, split: str | None, url: str) -> tuple[list[_Job], Choices]:
    """The shards of a split; where no name of a shard tells one, folders in archives do."""
    keys = [job.key for job in jobs]
    try:
        chosen = set(keys_of_split(keys, split, url, of_shards=True))
    except ConfigError:
        if split is None or {job.format for job in jobs} - {"tar", "zip"}:
            raise
        return jobs, replace(choices, split=split)
    return [job for job in jobs if job.key in chosen], choices


def _images(keys: Sequence[str], choices: Choices, split: str | None, url: str) -> list[str]:
    """The images of a split, by their folders."""
    return keys_of_split(list(filter(choices.is_image, keys)), split, url, of_shards=False)


def _loose_rows(job: _Job) -> tuple[list[Any], int, int]:
    return job.reader(), 0, 0


def _may_be_shard(key: str) -> bool:
    extension = posixpath.splitext(key)[1].lower()
    named = extension in FORMATS or posixpath.basename(key) == INDEX_FILE
    return bool(named or _SHARD_OF.search(key) or _PACKED.search(key.lower()))


def _jobs(
    shards: Shards,
    keys: Sequence[str],
    only: str | None,
    url: str,
    indexes: Collection[str] = (),
    *,
    listed: bool = True,
) -> tuple[list[_Job], int]:
    """The shards among objects, sorted by the bytes of their keys, and how many others there are.

    ``indexes`` are the index files among them. Where these are not all ``listed``, an index of shards that is
    among them adds those that it names.
    """
    layouts: dict[str, Layout] = {}
    for key in keys:
        if posixpath.basename(key) == INDEX_FILE:
            index = shards.open(key)
            layouts |= layouts_of(index)
            index.close()
    keys = keys if listed else sorted({*keys, *layouts})
    jobs = []
    chosen = [key for key in keys if only is None or fnmatch.fnmatchcase(key, only)]
    for key in chosen:
        if key in layouts:
            reader = partial(chunk_members, layout=layouts[key])
            jobs.append(_Job(key, layouts[key].format, reader))
            continue
        if job := _job_of(key, shards, indexes):
            jobs.append(job)
        elif key not in indexes and _PACKED.search(key.lower()):
            raise ShardFormatError(
                f"{url.rstrip('/')}/{key}: it is compressed as a whole, so that no member can be read "
                "alone: unpack it "
                "first (gunzip, unzstd, ...), which costs JPEGs and PNGs hardly any room; or pass over it "
                "by --only"
            )
    wanted = [key for key in layouts if only is None or fnmatch.fnmatchcase(key, only)]
    if gone := sorted(set(wanted) - set(keys)):
        raise ShardError(
            f"{url}: {INDEX_FILE} names {len(gone):,} shards that are not there, such as {gone[0]}"
        )
    if not jobs:
        told = f" whose key is like {only!r}" if only else ""
        raise SourceEmptyError(
            f"{url} holds no shard{told} ({', '.join(FORMATS)}, or those of MDS and LitData that an "
            f"{INDEX_FILE} names)"
        )
    return sorted(jobs, key=lambda job: job.key.encode()), len(keys) - len(jobs)


def _job_of(key: str, shards: Shards, indexes: Collection[str]) -> _Job | None:
    """A shard that its name tells."""
    extension = posixpath.splitext(key)[1].lower()
    if extension not in FORMATS and _SHARD_OF.search(key):
        extension = ".tfrecord"
    if extension not in FORMATS:
        return None
    reader, index = FORMATS[extension], index_of_tar(key, indexes) if extension == ".tar" else None
    if index:
        reader = partial(tar_members, shards=shards, index=index)
    return _Job(key, extension.removeprefix("."), reader)


def _read_all(
    read: Callable[[_Job], tuple[list[Any], int, int]],
    jobs: Sequence[_Job],
    threads: int,
    stop: threading.Event,
) -> Iterator[tuple[_Job, list[Any], int, int]]:
    """What ``read`` gives for each, in their order; few are read ahead of what is taken."""
    with ThreadPoolExecutor(threads, thread_name_prefix="super-index") as pool:
        pending = deque((job, pool.submit(read, job)) for job in jobs[: threads * _AHEAD])
        rest = iter(jobs[threads * _AHEAD :])
        try:
            while pending:
                job, future = pending.popleft()
                found = future.result()
                if (later := next(rest, None)) is not None:
                    pending.append((later, pool.submit(read, later)))
                yield job, *found
        finally:
            stop.set()  # for those that are read still, where this ends early
            pool.shutdown(wait=False, cancel_futures=True)


def _rows(shards: Shards, choices: Choices, job: _Job) -> tuple[list[Row], int, int]:
    """The rows of a shard, checked and sorted by where they lie; how many members are empty, and how many
    samples lack a field.
    """
    shard = shards.open(job.key)
    try:
        members = sorted(job.reader(shard, choices), key=lambda member: (member.offset, member.length))
    finally:
        shard.close()
    if choices.split not in {None, EVERY_SPLIT}:
        members = [member for member in members if choices.split in folders_of(member.name)]
    end, before, empty = 0, "", 0
    for member in members:
        if not is_row(member.encoding):
            shard.check(member.offset, member.length, member.name)
            if member.length > _MEMBER_BYTES:
                raise shard.error(
                    f"it has {member.length:,} bytes, a sample has at most {_MEMBER_BYTES:,}", member.name
                )
            if member.offset < end:
                raise shard.error(f"it overlaps the member {before!r}", member.name)
            end, before = member.offset + member.length, member.name
            empty += not member.length
    counts = Counter(member.name for member in members)
    if len(counts) < len(members):
        raise shard.error("its name comes more than once: which is meant?", counts.most_common(1)[0][0])
    there = [member for member in members if member.length or is_row(member.encoding)]
    samples = with_fields(there, choices.fields)
    rows = [
        Row(
            shard.key,
            _name(shard, member),
            member.offset,
            member.length,
            member.encoding,
            _label(shard, member, choices),
            shard.version,
            columns_of(
                {name: (_name(shard, part), *part[1:3], part.encoding) for name, part in others.items()}
            ),
        )
        for member, others in samples
        if len(others) == len(choices.fields[1:])
    ]
    return rows, empty, len(samples) - len(rows)


def _name(shard: Shard, member: Member) -> str:
    try:
        encoded = member.name.encode()
    except UnicodeEncodeError as error:
        raise shard.error("its name is not UTF-8: rename it", member.name) from error
    if not encoded or b"\0" in encoded or len(encoded) > _NAME_BYTES:
        raise shard.error(f"its name is empty, holds a NUL or has more than {_NAME_BYTES} bytes", member.name)
    return member.name


def _label(shard: Shard, member: Member, choices: Choices) -> Label | None:
    """The label of a member, as the choices have it; ``None``: a folder's, once all samples are known."""
    folders = folders_of(member.name)
    if choices.labels == "none":
        return 0
    if choices.labels == "shard":
        return posixpath.basename(shard.key).partition(".")[0]
    label: Label | None = member.label
    if choices.labels == "folder":
        label = folders[-1] if folders else None
    elif label is None and folders and choices.label_field is None:
        return None
    if label is None or label == "":
        raise shard.error(
            f"it has no label: say where labels are by --label-field NAME or --labels ({', '.join(LABELS)})",
            member.name,
        )
    return label
