"""The source: what a first page of its listing holds, one of its objects, where its bucket lies.

Listing is what a coordinator does and fetching what functions do; here this machine's identity does both.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors import executor_classes
from superdl.doctor.aws import judge_refusal, note_clock
from superdl.doctor.directory import find_object, first_folders
from superdl.doctor.finding import bad, doubtful, good, skipped
from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from superdl.coordinator.catalog.source import Source
    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found

__all__ = ["check_listing", "check_object", "check_region"]

_ENTRIES = 1000
_LOOKED_INTO = 4
_SHOWN = 4
_ARCHIVED = "InvalidObjectState"


@dataclass(frozen=True, slots=True)
class _Page:
    folders: list[str]
    key: str  # of an object that would be a sample; empty if none was seen


def check_listing(case: Case, seen: Seen) -> Found:
    """Whether it can be listed, and has what a catalog is made of."""
    if not case.source:
        where = f", below {case.readable}" if case.readable else ""
        return skipped("no source is named", f"name one: superdl doctor s3://bucket/prefix{where}")
    from superdl.coordinator.catalog.source import parse_source

    source = parse_source(case.source)
    began_s = time.monotonic()
    page = _directory_page(case, source) if source.is_file else _bucket_page(case, seen, source)
    if not isinstance(page, _Page):
        return page
    seen.object_key = page.key
    return _judge_page(case, page, time.monotonic() - began_s)


def _judge_page(case: Case, page: _Page, took_s: float) -> Found:
    place = case.source
    if case.key_list:
        if not page.key:
            return doubtful(
                f"nothing was found below {place} on the first page", "see that key_list names keys of it"
            )
        return good(f"{place} can be listed, for example {page.key}, {took_s:.2f} s")
    if not page.folders:
        what = f"{page.key} lies in it itself" if page.key else "nothing that has an image's extension"
        return bad(
            f"{place} has no folders: {what}; the first folders below a source are its classes",
            "name the prefix whose folders are the classes, or a key list with labels: --key-list",
        )
    shown = ", ".join(page.folders[:_SHOWN]) + (", ..." if len(page.folders) > _SHOWN else "")
    if not page.key:
        why = f"the first class folders of {place} ({shown}) hold no object with an image's extension"
        return doubtful(why, "name the prefix whose folders are the classes, or a key list: --key-list")
    more = "at least " if len(page.folders) >= _ENTRIES else ""
    seen = f"{more}{len(page.folders)} class folders ({shown}), {took_s:.2f} s"
    return good(f"{place} can be listed: {seen}", classes=len(page.folders))


def _directory_page(case: Case, source: Source) -> _Page | Found:
    try:
        folders = first_folders(source.directory, _ENTRIES)
    except OSError as error:
        if case.elsewhere:
            why = f"{source.directory} is not to be seen here ({error.strerror})"
            return skipped(f"{why}; the coordinator's machine may have it")
        return bad(f"{source.directory} cannot be listed: {error.strerror}", "correct the path or its rights")
    return _Page(folders, find_object(source.directory, images_only=not case.key_list))


def _bucket_page(case: Case, seen: Seen, source: Source) -> _Page | Found:
    from superdl.coordinator.catalog.s3_client import make_s3_client, s3_failures

    asked_s = time.time()
    try:
        with s3_failures(source.url):
            client = make_s3_client()
            try:
                page = _list(client, source, seen, Prefix=source.prefix, Delimiter="/")
                prefixes = [str(entry["Prefix"]) for entry in page.get("CommonPrefixes", ())]
                key = _sample_of(page, case)
                for prefix in prefixes[:_LOOKED_INTO]:
                    key = key or _sample_of(_list(client, source, seen, Prefix=prefix), case)
            finally:
                client.close()
    except SourceError as error:
        return _no_listing(case, seen, source, error, asked_s)
    return _Page([prefix[len(source.prefix) : -1] for prefix in prefixes], key)


def _list(client: Any, source: Source, seen: Seen, **words: str) -> dict[str, Any]:
    asked_s = time.time()
    page: dict[str, Any] = client.list_objects_v2(Bucket=source.bucket_name, MaxKeys=_ENTRIES, **words)
    if not any(clock.name == "S3" for clock in seen.clocks):
        note_clock(seen, "S3", page.get("ResponseMetadata", {}), asked_s)
    return page


def _sample_of(page: dict[str, Any], case: Case) -> str:
    from superdl.coordinator.catalog.listing import is_image

    keys = (str(entry["Key"]) for entry in page.get("Contents", ()))
    return next((key for key in keys if not key.endswith("/") and (case.key_list or is_image(key))), "")


def _no_listing(case: Case, seen: Seen, source: Source, error: SourceError, asked_s: float) -> Found:
    from superdl.coordinator.aws_credentials import NO_CREDENTIALS

    cause = error.__cause__
    response = getattr(cause, "response", None)
    if not isinstance(response, dict):  # no credentials, nobody there
        if not case.elsewhere:
            return bad(str(error), "")
        if isinstance(cause, NO_CREDENTIALS):
            return skipped(f"{source.url} was not listed from here: {cause}; the coordinator's role does it")
        remedy = "it may do no harm: the coordinator lists it, and functions read it, from elsewhere"
        return doubtful(str(error), remedy)
    note_clock(seen, "S3", response.get("ResponseMetadata", {}), asked_s)
    code = response.get("Error", {}).get("Code", "")
    if code in {"NoSuchBucket", "404"}:
        return bad(
            f"there is no bucket {source.bucket_name} ({code})", "correct the name, or SUPER_S3_ENDPOINT_URL"
        )
    words = f"{source.url} cannot be listed ({cause})"
    arn = f"arn:aws:s3:::{source.bucket_name}"
    return judge_refusal(cause, words, case=case, permission="s3:ListBucket", arn=arn)


def check_object(case: Case, seen: Seen) -> Found:
    """One object, got and decoded as the recipe says."""
    if not seen.object_key:
        return skipped("no object is known: no listing has named one")
    from superdl.coordinator.catalog.source import parse_source

    source = parse_source(case.source)
    began_s = time.monotonic()
    data = _read_file(source, seen.object_key) if source.is_file else _get(case, source, seen.object_key)
    if not isinstance(data, bytes):
        return data
    took_s = time.monotonic() - began_s
    seen.object_bytes = len(data)
    return _decoded(
        case, seen, source, data, f"{seen.object_key}: {len(data):,} bytes in {took_s * 1000:.0f} ms"
    )


def _read_file(source: Source, key: str) -> bytes | Found:
    try:
        return Path(source.directory, key).read_bytes()
    except OSError as error:
        return bad(f"{key} cannot be read: {error.strerror}", "see the file's rights")


def _get(case: Case, source: Source, key: str) -> bytes | Found:
    from botocore import exceptions

    from superdl.coordinator.catalog.s3_client import make_s3_client
    from superdl.super_wire.request import Limits

    client = make_s3_client()
    try:
        answer = client.get_object(Bucket=source.bucket_name, Key=key)
        with answer["Body"] as body:
            limit = Limits().object_bytes
            if answer["ContentLength"] > limit:
                return doubtful(
                    f"{key} has {answer['ContentLength']:,} bytes", f"functions take {limit:,} at most"
                )
            data: bytes = body.read()
    except exceptions.ClientError as error:
        return _no_object(case, source, key, error)
    except exceptions.BotoCoreError as error:
        worst = doubtful if case.elsewhere else bad
        return worst(f"{key} did not come: {error}", "check the network to the object store")
    finally:
        client.close()
    return data


def _no_object(case: Case, source: Source, key: str, error: Any) -> Found:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code == _ARCHIVED:
        why = f"{key} lies in an archive (Glacier, Deep Archive) and cannot be read"
        return bad(why, "restore it, or leave it out by a key list")
    words = f"{key} cannot be read ({error})"
    if "kms" in str(error).lower():
        return judge_refusal(error, words, case=case, permission="kms:Decrypt", arn="the key of the bucket")
    arn = f"arn:aws:s3:::{source.bucket_name}/{source.prefix}*"
    return judge_refusal(error, words, case=case, permission="s3:GetObject", arn=arn)


def _decoded(case: Case, seen: Seen, source: Source, data: bytes, told: str) -> Found:
    from superdl.lambda_prefetch.failures import SampleFailedError
    from superdl.lambda_prefetch.settings import FunctionSettings
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
        array = program.make(data, seen.object_key)
    except SampleFailedError as error:
        remedy = "mend it or leave it out (on_bad_sample='skip'); where all are like it, mend the recipe"
        return doubtful(f"{told}; it cannot be decoded: {error}", remedy)
    seen.record_bytes = HEADER_BYTES + array.nbytes
    decoded = f"decoded to {array.dtype} {tuple(array.shape)} in {(time.monotonic() - began_s) * 1000:.0f} ms"
    return good(f"{told}, {decoded}", bytes=len(data), record_bytes=seen.record_bytes)


def check_region(case: Case, seen: Seen) -> Found:
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
    settings = seen.functions(case)
    regions = [executor.region_of(settings) for executor in executor_classes(settings.executors)]
    own = next(filter(None, regions), "")
    here = own or seen.aws_region
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
