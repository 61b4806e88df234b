"""The source: what a first page of its listing holds, and one of its objects.

Listing is what a coordinator does and fetching what functions do; here this machine's identity does both.
"""

from __future__ import annotations

import os
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.doctor.checking import Finding, bad, doubtful, good, skipped
from superdl.super_wire.errors import ConfigError, SourceError, SourceForbiddenError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from superdl.coordinator.catalog.source import Source
    from superdl.doctor.checking import Case

__all__ = ["check_listing", "check_object"]

_ENTRIES = 1000
_FILES = 10_000
_LOOKED_INTO = 4
_SHOWN = 4


def check_listing(case: Case) -> Finding:
    """Whether it can be listed, and has what a catalog is made of."""
    if not case.source:
        return skipped("no source is named", "name one: superdl doctor s3://bucket/prefix")
    from superdl.coordinator.catalog.source import parse_source

    source = parse_source(case.source)
    folders = _directory_folders(case, source) if source.is_file else _bucket_folders(case, source)
    if isinstance(folders, Finding):
        return folders
    return _judge_folders(case, folders, case.object_key)


def _judge_folders(case: Case, folders: list[str], key: str) -> Finding:
    if case.key_list:
        if key:
            return good(f"{case.source} can be listed, for example {key}")
        why = f"nothing was found below {case.source} on the first page"
        return doubtful(why, "see that key_list names keys of it")
    remedy = "name the prefix whose folders are the classes, or a key list: --key-list"
    if not folders:
        what = f"{key} lies in it itself" if key else "nothing that has an image's extension"
        return bad(
            f"{case.source} has no folders: {what}; the first folders below it are its classes", remedy
        )
    shown = ", ".join(folders[:_SHOWN]) + (", ..." if len(folders) > _SHOWN else "")
    if not key:
        why = f"the first class folders of {case.source} ({shown}) hold no object with an image's extension"
        return doubtful(why, remedy)
    more = "at least " if len(folders) >= _ENTRIES else ""
    words = f"{case.source} can be listed: {more}{len(folders)} class folders ({shown})"
    return good(words, classes=len(folders))


def _first_sample(case: Case, keys: Iterable[str]) -> str:
    """The first key that would be a sample; empty if none is."""
    from superdl.coordinator.catalog.listing import is_image

    return next((key for key in keys if not key.endswith("/") and (case.key_list or is_image(key))), "")


def _directory_folders(case: Case, source: Source) -> list[str] | Finding:
    root = source.directory
    try:
        with os.scandir(root) as entries:
            folders = sorted(entry.name for entry in islice(entries, _ENTRIES) if entry.is_dir())
    except OSError as error:
        if case.elsewhere:
            why = f"{root} is not to be seen here ({error.strerror})"
            return skipped(f"{why}; the coordinator's machine may have it")
        return bad(f"{root} cannot be listed: {error.strerror}", "correct the path or its rights")
    paths = (Path(folder, name) for folder, _, names in os.walk(root) for name in sorted(names))
    case.object_key = _first_sample(
        case, (path.relative_to(root).as_posix() for path in islice(paths, _FILES))
    )
    return folders


def _bucket_folders(case: Case, source: Source) -> list[str] | Finding:
    from superdl.coordinator.catalog.s3_client import make_s3_client, s3_failures

    def page(**words: str) -> dict[str, Any]:
        answer: dict[str, Any] = client.list_objects_v2(Bucket=source.bucket_name, MaxKeys=_ENTRIES, **words)
        case.object_key = case.object_key or _first_sample(
            case, (str(entry["Key"]) for entry in answer.get("Contents", ()))
        )
        return answer

    try:
        with s3_failures(source.url), closing(make_s3_client()) as client:
            top = page(Prefix=source.prefix, Delimiter="/")
            prefixes = [str(entry["Prefix"]) for entry in top.get("CommonPrefixes", ())]
            for prefix in prefixes[:_LOOKED_INTO]:
                page(Prefix=prefix)
    except SourceError as error:
        case.object_key = ""
        return _refused(case, error)
    return [prefix[len(source.prefix) : -1] for prefix in prefixes]


def _refused(case: Case, error: SourceError) -> Finding:
    """What it means that the store refuses, or does not answer; the error has a remedy."""
    from superdl.coordinator.catalog.s3_client import NO_CREDENTIALS

    if not case.elsewhere or isinstance(error, SourceNotFoundError):
        return bad(str(error), "")
    if isinstance(error, SourceForbiddenError) or isinstance(error.__cause__, NO_CREDENTIALS):
        return skipped(
            f"not to be looked at from here, and no fault: the coordinator's role does it ({error})"
        )
    return doubtful(str(error), "it may do no harm: the coordinator and functions read it from elsewhere")


def check_object(case: Case) -> Finding:
    """One object, got and decoded as the recipe says."""
    key = case.object_key
    if not key:
        return skipped("no object is known: no listing has named one")
    from superdl.coordinator.catalog.source import parse_source
    from superdl.super_wire.request import Limits

    source, limit = parse_source(case.source), Limits().object_bytes
    try:
        data = (
            Path(source.directory, key).read_bytes() if source.is_file else _object_of(source, key, limit + 1)
        )
    except OSError as error:
        return bad(f"{key} cannot be read: {error.strerror}", "see the file's rights")
    except SourceError as error:
        return _refused(case, error)
    if len(data) > limit:
        return doubtful(f"{key} has more than {limit:,} bytes", "functions take no larger objects")
    return _decoded(case, source, data)


def _object_of(source: Source, key: str, most: int) -> bytes:
    from superdl.coordinator.catalog.s3_client import make_s3_client, s3_failures

    with s3_failures(f"{source.bucket}/{key}"), closing(make_s3_client()) as client:
        answer = client.get_object(Bucket=source.bucket_name, Key=key)
        data: bytes = answer["Body"].read(most)
        return data


def _decoded(case: Case, source: Source, data: bytes) -> Finding:
    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.lambda_prefetch.sources import SampleFailedError
    from superdl.lambda_prefetch.transforms import Program
    from superdl.super_wire.record import HEADER_BYTES
    from superdl.super_wire.request import Limits

    told = f"{case.object_key}: {len(data):,} bytes"
    try:
        program = Program(
            case.recipe,
            bucket=source.bucket,
            epoch=0,
            limit_pixels=Limits().image_pixels,
            step_modules=FunctionSettings.from_environment().step_modules,
        )
        array = program.make(data, case.object_key)
    except ConfigError as error:
        return good(f"{told}; not decoded here: {error}", bytes=len(data))
    except SampleFailedError as error:
        remedy = "mend it or leave it out (on_bad_sample='skip'); where all are like it, mend the recipe"
        return doubtful(f"{told}; it cannot be decoded: {error}", remedy)
    case.record_bytes = HEADER_BYTES + array.nbytes
    decoded = f"{told}, decoded to {array.dtype} {tuple(array.shape)}"
    return good(decoded, bytes=len(data), record_bytes=case.record_bytes)
