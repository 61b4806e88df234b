"""The source, and who asks for it: this machine's AWS credentials, and a first page of the listing.

Endpoints, regions, profiles and credentials come from AWS's own settings (``AWS_ENDPOINT_URL``,
``AWS_PROFILE``, ...); where the object store is another's, from ``SUPER_S3_ENDPOINT_URL``. Listing is what a
coordinator does; here this machine's identity does it.
"""

from __future__ import annotations

import os
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors import executor_classes
from superdl.doctor.checking import Finding, bad, doubtful, good, skipped
from superdl.super_wire.errors import SourceError, SourceForbiddenError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from superdl.coordinator.catalog.source import Source
    from superdl.doctor.checking import Case

__all__ = ["check_credentials", "check_listing"]

_ENTRIES = 1000
_FILES = 10_000
_LOOKED_INTO = 4
_SHOWN = 4
_HOWTO = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"


def check_credentials(case: Case) -> Finding:
    """The credentials with which this machine asks S3 and Lambda: where they are from."""
    executors = executor_classes(case.settings.executors)
    if not (case.source.startswith("s3://") or any(executor.uses_aws for executor in executors)):
        return skipped(f"nothing that was named needs AWS ({case.source or 'no source'})")
    import boto3
    from botocore import exceptions

    try:
        session = boto3.session.Session()
        credentials = session.get_credentials()
        region = session.region_name or os.environ.get("AWS_REGION", "")
        if credentials is not None:
            credentials.get_frozen_credentials()  # renews what has run out
    except (exceptions.BotoCoreError, RuntimeError) as error:  # RuntimeError: renewed, and run out already
        failure = doubtful if case.elsewhere else bad
        return failure(f"AWS credentials cannot be had: {error}", _HOWTO)
    if credentials is None:
        if case.elsewhere:
            why = "this machine has no AWS credentials; with a coordinator named it needs none"
            return skipped(why, f"to look at the bucket from here, {_HOWTO}")
        return bad("this machine has no AWS credentials", _HOWTO)
    if not region and not os.environ.get("SUPER_S3_ENDPOINT_URL"):
        why = f"from {credentials.method}; no region is set, us-east-1 is assumed"
        return doubtful(why, "set AWS_DEFAULT_REGION to the region of bucket and functions")
    return good(f"from {credentials.method}, region {region or 'of no matter'}")


def check_listing(case: Case) -> Finding:
    """Whether it can be listed, and has what a catalog is made of."""
    if not case.source:
        return skipped("no source is named", "name one: superdl doctor s3://bucket/prefix")
    from superdl.coordinator.catalog.source import parse_source

    source = parse_source(case.source)
    folders = _directory_folders(case, source) if source.is_file else _bucket_folders(case, source)
    if isinstance(folders, Finding):
        return folders
    return _judge_folders(case, *folders)


def _judge_folders(case: Case, folders: list[str], key: str) -> Finding:
    """What the first folders mean, and the first key of a sample, empty if there is none."""
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


def _directory_folders(case: Case, source: Source) -> tuple[list[str], str] | Finding:
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
    return folders, _first_sample(case, (path.relative_to(root).as_posix() for path in islice(paths, _FILES)))


def _bucket_folders(case: Case, source: Source) -> tuple[list[str], str] | Finding:
    from superdl.coordinator.catalog.s3_client import make_s3_client, s3_failures

    def page(**words: str) -> dict[str, Any]:
        answer: dict[str, Any] = client.list_objects_v2(Bucket=source.bucket_name, MaxKeys=_ENTRIES, **words)
        keys.extend(str(entry["Key"]) for entry in answer.get("Contents", ()))
        return answer

    keys: list[str] = []
    try:
        with s3_failures(source.url), closing(make_s3_client()) as client:
            top = page(Prefix=source.prefix, Delimiter="/")
            prefixes = [str(entry["Prefix"]) for entry in top.get("CommonPrefixes", ())]
            for prefix in prefixes[:_LOOKED_INTO]:
                page(Prefix=prefix)
    except SourceError as error:
        return _refused(case, error)
    return [prefix[len(source.prefix) : -1] for prefix in prefixes], _first_sample(case, keys)


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
