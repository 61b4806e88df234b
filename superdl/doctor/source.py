"""The source: what a first page of its listing holds, one of its objects, where its bucket lies.

Listing is what a coordinator does and fetching what functions do; here this machine's identity does both.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors import executor_classes
from superdl.doctor.aws import judge_refusal, note_date, refusal_code
from superdl.doctor.checking import Finding, bad, doubtful, good, skipped
from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from superdl.coordinator.catalog.source import Source
    from superdl.doctor.checking import Case

__all__ = ["check_listing", "check_object", "check_region"]

_ENTRIES = 1000
_FILES = 10_000
_LOOKED_INTO = 4
_SHOWN = 4


def check_listing(case: Case) -> Finding:
    """Whether it can be listed, and has what a catalog is made of."""
    if not case.source:
        where = f", below {case.readable}" if case.readable else ""
        return skipped("no source is named", f"name one: superdl doctor s3://bucket/prefix{where}")
    from superdl.coordinator.catalog.source import parse_source

    source = parse_source(case.source)
    began_s = time.monotonic()
    folders = _directory_folders(case, source) if source.is_file else _bucket_folders(case, source)
    if isinstance(folders, Finding):
        return folders
    return _judge_listing(case, folders, case.object_key, time.monotonic() - began_s)


def _judge_listing(case: Case, folders: list[str], key: str, took_s: float) -> Finding:
    if case.key_list and key:
        return good(f"{case.source} can be listed, for example {key}, {took_s:.2f} s")
    if case.key_list:
        why = f"nothing was found below {case.source} on the first page"
        return doubtful(why, "see that key_list names keys of it")
    remedy = "name the prefix whose folders are the classes, or a key list"
    if not folders:
        what = f"{key} lies in it itself" if key else "nothing that has an image's extension"
        why = f"{case.source} has no folders: {what}; the first folders below a source are its classes"
        return bad(why, f"{remedy} with labels: --key-list")
    shown = ", ".join(folders[:_SHOWN]) + (", ..." if len(folders) > _SHOWN else "")
    if not key:
        why = f"the first class folders of {case.source} ({shown}) hold no object with an image's extension"
        return doubtful(why, f"{remedy}: --key-list")
    more = "at least " if len(folders) >= _ENTRIES else ""
    seen = f"{more}{len(folders)} class folders ({shown}), {took_s:.2f} s"
    return good(f"{case.source} can be listed: {seen}", classes=len(folders))


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
    paths = (path.relative_to(root).as_posix() for path in _files(root))
    case.object_key = _first_sample(case, islice(paths, _FILES))
    return folders


def _files(root: str) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(files))


def _bucket_folders(case: Case, source: Source) -> list[str] | Finding:
    from superdl.coordinator.catalog.s3_client import make_s3_client, s3_failures

    def page(**words: str) -> dict[str, Any]:
        asked_s = time.time()
        answer: dict[str, Any] = client.list_objects_v2(Bucket=source.bucket_name, MaxKeys=_ENTRIES, **words)
        if not any(clock.name == "S3" for clock in case.clocks):
            note_date(case, "S3", answer, asked_s)
        return answer

    def sample_of(answer: dict[str, Any]) -> str:
        return _first_sample(case, (str(entry["Key"]) for entry in answer.get("Contents", ())))

    began_s = time.time()
    try:
        with s3_failures(source.url), closing(make_s3_client()) as client:
            top = page(Prefix=source.prefix, Delimiter="/")
            prefixes = [str(entry["Prefix"]) for entry in top.get("CommonPrefixes", ())]
            case.object_key = sample_of(top)
            for prefix in prefixes[:_LOOKED_INTO]:
                case.object_key = case.object_key or sample_of(page(Prefix=prefix))
    except SourceError as error:
        case.object_key = ""
        return _no_listing(case, source, error, began_s)
    return [prefix[len(source.prefix) : -1] for prefix in prefixes]


def _no_listing(case: Case, source: Source, error: SourceError, asked_s: float) -> Finding:
    from superdl.coordinator.aws_credentials import NO_CREDENTIALS

    cause, code = error.__cause__, refusal_code(error.__cause__)
    response = getattr(cause, "response", None)
    if not isinstance(response, dict):  # no credentials, nobody there
        if not case.elsewhere:
            return bad(str(error), "")
        if isinstance(cause, NO_CREDENTIALS):
            return skipped(f"{source.url} was not listed from here: {cause}; the coordinator's role does it")
        remedy = "it may do no harm: the coordinator lists it, and functions read it, from elsewhere"
        return doubtful(str(error), remedy)
    note_date(case, "S3", response, asked_s)
    if code in {"NoSuchBucket", "404"}:
        why = f"there is no bucket {source.bucket_name} ({code})"
        return bad(why, "correct the name, or SUPER_S3_ENDPOINT_URL")
    words = f"{source.url} cannot be listed ({cause})"
    arn = f"arn:aws:s3:::{source.bucket_name}"
    return judge_refusal(cause, words, case=case, permission="s3:ListBucket", arn=arn)


def check_object(case: Case) -> Finding:
    """One object, got and decoded as the recipe says."""
    key = case.object_key
    if not key:
        return skipped("no object is known: no listing has named one")
    from superdl.coordinator.catalog.source import parse_source

    source = parse_source(case.source)
    began_s = time.monotonic()
    try:
        data = Path(source.directory, key).read_bytes() if source.is_file else _get(case, source, key)
    except OSError as error:
        return bad(f"{key} cannot be read: {error.strerror}", "see the file's rights")
    if isinstance(data, Finding):
        return data
    took_ms = (time.monotonic() - began_s) * 1000
    return _decoded(case, source, data, f"{key}: {len(data):,} bytes in {took_ms:.0f} ms")


def _get(case: Case, source: Source, key: str) -> bytes | Finding:
    from botocore import exceptions

    from superdl.coordinator.catalog.s3_client import make_s3_client
    from superdl.super_wire.request import Limits

    limit = Limits().object_bytes
    try:
        with closing(make_s3_client()) as client:
            answer = client.get_object(Bucket=source.bucket_name, Key=key)
            with answer["Body"] as body:
                size = answer["ContentLength"]
                data: bytes = body.read() if size <= limit else b""
    except exceptions.ClientError as error:
        return _no_object(case, source, key, error)
    except exceptions.BotoCoreError as error:
        return case.bad_here(f"{key} did not come: {error}", "check the network to the object store")
    if size > limit:
        return doubtful(f"{key} has {size:,} bytes", f"functions take {limit:,} at most")
    return data


def _no_object(case: Case, source: Source, key: str, error: Any) -> Finding:
    if refusal_code(error) == "InvalidObjectState":
        why = f"{key} lies in an archive (Glacier, Deep Archive) and cannot be read"
        return bad(why, "restore it, or leave it out by a key list")
    words = f"{key} cannot be read ({error})"
    if "kms" in str(error).lower():
        return judge_refusal(error, words, case=case, permission="kms:Decrypt", arn="the key of the bucket")
    arn = f"arn:aws:s3:::{source.bucket_name}/{source.prefix}*"
    return judge_refusal(error, words, case=case, permission="s3:GetObject", arn=arn)


def _decoded(case: Case, source: Source, data: bytes, told: str) -> Finding:
    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.lambda_prefetch.sources import SampleFailedError
    from superdl.lambda_prefetch.transforms import Program
    from superdl.super_wire.record import HEADER_BYTES
    from superdl.super_wire.request import Limits

    try:
        program = Program(
            case.recipe,
            bucket=source.bucket,
            epoch=0,
            limit_pixels=Limits().image_pixels,
            step_modules=FunctionSettings.from_environment().step_modules,
        )
    except ConfigError as error:
        return good(f"{told}; not decoded here: {error}", bytes=len(data))
    began_s = time.monotonic()
    try:
        array = program.make(data, case.object_key)
    except SampleFailedError as error:
        remedy = "mend it or leave it out (on_bad_sample='skip'); where all are like it, mend the recipe"
        return doubtful(f"{told}; it cannot be decoded: {error}", remedy)
    case.record_bytes = HEADER_BYTES + array.nbytes
    decoded = f"decoded to {array.dtype} {tuple(array.shape)} in {(time.monotonic() - began_s) * 1000:.0f} ms"
    return good(f"{told}, {decoded}", bytes=len(data), record_bytes=case.record_bytes)


def check_region(case: Case) -> Finding:
    """Whether bucket and functions lie in one region."""
    if not case.source.startswith("s3://"):
        return skipped("the source is no bucket" if case.source else "no source is named")
    from superdl.coordinator.catalog.regions import bucket_region
    from superdl.coordinator.catalog.source import parse_source

    bucket = parse_source(case.source).bucket_name
    try:
        there = bucket_region(bucket)
    except SourceError as error:
        return skipped(f"the store does not tell the bucket's region: {error.__cause__ or error}")
    settings = case.functions()
    regions = [executor.region_of(settings) for executor in executor_classes(settings.executors)]
    own = next(filter(None, regions), "")
    here = own or case.aws_region
    if not there or not here:
        unknown = "the store tells no region of its bucket" if not there else "this machine has no region set"
        return skipped(unknown)
    if there == here:
        return good(f"{bucket} lies in {there}, {'the functions' if own else 'this machine'} too")
    who = "the functions run" if own else "this machine asks"
    why = (
        f"{bucket} lies in {there}, {who} in {here}: transfer between regions is billed and slow, a VPC's "
        "gateway endpoint does not lead there"
    )
    return doubtful(why, f"run functions and trainers in {there}, or copy the bucket")
