"""Checks of where samples are stored: credentials, a listing's start, and the store of decoded records."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.coordinator.executors import executor_classes
from superdl.doctor.checking import Finding, bad, doubtful, good, skipped
from superdl.super_wire.errors import (
    ConfigError,
    RecordError,
    SourceError,
    SourceForbiddenError,
    SourceNotFoundError,
    StoreError,
    StoreGoneError,
)
from superdl.super_wire.objects.s3_account import Account
from superdl.super_wire.redaction import counted, sized
from superdl.super_wire.store import check_record, is_bucket

if TYPE_CHECKING:
    from superdl.doctor.checking import Case
    from superdl.super_wire.store import Store

_ENOUGH = 20_000  # samples: twenty requests to S3
_SHOWN = 4
_LEFT_FREE = 0.1  # share of a disk that a coordinator leaves free
_HOWTO = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"


def check_credentials(case: Case) -> Finding:
    """Check this machine's credentials for S3 and Lambda, and report where they come from."""
    executors = executor_classes(case.settings.executors)
    anonymous = Account().anonymous
    of_s3 = case.source.startswith("s3://") and not anonymous
    if not (of_s3 or any(executor.uses_aws for executor in executors)):
        why = ", and SUPER_S3_ANONYMOUS is set" if anonymous else ""
        return skipped(f"no AWS credentials needed ({case.source or 'no source'}{why})")
    import boto3
    from botocore import exceptions

    try:
        session = boto3.session.Session()
        credentials = session.get_credentials()
        region = session.region_name or os.environ.get("AWS_REGION", "")
        if credentials is not None:
            credentials.get_frozen_credentials()  # renews expired ones
    except (exceptions.BotoCoreError, exceptions.ClientError, RuntimeError, OSError, ValueError) as error:
        # RuntimeError: expired even after a renewal. OSError, ValueError: from programs and files.
        failure = doubtful if case.elsewhere else bad
        return failure(f"cannot get AWS credentials: {error}", _HOWTO)
    if credentials is None:
        if case.elsewhere:
            why = "this machine has no AWS credentials, but it needs none with a coordinator"
            return skipped(why, f"to check the bucket from here, {_HOWTO}")
        return bad("this machine has no AWS credentials", _HOWTO)
    if not region and not os.environ.get("SUPER_S3_ENDPOINT_URL"):
        why = f"from {credentials.method}; no region is set, so us-east-1 is assumed"
        return doubtful(why, "set AWS_DEFAULT_REGION to the region of the bucket and the functions")
    return good(f"from {credentials.method}, region {region or 'not needed'}")


def check_listing(case: Case) -> Finding:
    """Check that the coordinator's own code can list the source, up to a limited number of samples."""
    if not case.source:
        return skipped("no source is given", "pass one: superdl doctor s3://bucket/prefix")
    from superdl.coordinator.catalog.lister import list_source
    from superdl.coordinator.catalog.listing import ListingCancelledError

    enough = threading.Event()

    def count(listed: int | None) -> None:
        if listed is not None and listed >= _ENOUGH:
            enough.set()

    try:
        catalog = list_source(case.source, case.key_list, count, enough)
    except ListingCancelledError:
        return good(f"{case.source} can be listed: {_ENOUGH:,} samples or more")
    except SourceError as error:
        return _refused(case, error)
    classes = len(catalog.classes)
    classes_text = ", ".join(catalog.classes[:_SHOWN]) + (", ..." if classes > _SHOWN else "")
    summary = counted(len(catalog.keys), "sample") + (
        f" of {classes:,} classes ({classes_text})" if classes else ""
    )
    return good(f"{case.source} can be listed: {summary}", samples=len(catalog.keys), classes=classes)


def _refused(case: Case, error: SourceError) -> Finding:
    unreadable = isinstance(error, SourceNotFoundError | SourceForbiddenError)
    if case.elsewhere and unreadable and case.source.startswith("file:"):
        return skipped(f"not visible from this machine, but the coordinator's machine may have it ({error})")
    if not case.elsewhere or isinstance(error, SourceNotFoundError):
        return bad(str(error), "")
    if isinstance(error, SourceForbiddenError):
        return skipped(
            f"cannot be checked from here, which is fine: the coordinator's role reads it ({error})"
        )
    return doubtful(str(error), "this may be harmless: the coordinator and functions read it from elsewhere")


def check_store(case: Case) -> Finding:
    """Check that the store can be used from here."""
    from superdl.coordinator.store import AUTO, NONE, chosen_store

    if case.named_store.lower() == NONE:
        return skipped("SUPER_STORE=none turns it off", "a directory or s3://bucket/prefix turns it on")
    # Readers that can access the coordinator's store read packs directly.
    if case.elsewhere:
        return _of_the_coordinator(case.store)
    choice = chosen_store(case.named_store or AUTO, os.environ)
    if not choice.address:
        why = f"the embedded default keeps no store and decodes in each run: {choice.reason}"
        return doubtful(why, "set SUPER_STORE to a directory on a disk with free space")
    try:
        replace(case.settings, store=choice.address)
    except ConfigError as error:
        return bad(str(error), "use a store that they can reach: SUPER_STORE=s3://bucket/prefix")
    return _of_this_machine(choice.address)


def _of_this_machine(address: str) -> Finding:
    from superdl.super_wire.store import open_store

    try:
        return _judged(open_store(address, create=False))
    except StoreGoneError as error:
        if is_bucket(address):
            return skipped(str(error), "a coordinator that uses it as its store creates it")
        return _not_there_yet(address)
    except StoreError as error:
        return bad(str(error), "set SUPER_STORE to another place, or to none for no store")


def _of_the_coordinator(address: str) -> Finding:
    from superdl.super_wire.store import open_store

    if not address:
        return skipped("the coordinator has none", "start it with --store to decode once (docs/store.md)")
    if is_bucket(address):
        return skipped(f"the coordinator and its functions use {address}; readers read only the cache")
    try:
        open_store(address, create=False, read_only=True)
    except StoreError as error:
        why = f"this machine cannot access {address}, so it gets its records through the cache ({error})"
        return skipped(why, "mount it here at the same path to let readers read packs themselves")
    return good(f"{address} is accessible from here, so readers read packs themselves")


def _not_there_yet(address: str) -> Finding:
    from superdl.coordinator.store import read_only_reason

    above = next(folder for folder in Path(address).parents if folder.is_dir())
    if why := read_only_reason(above):
        return bad(f"cannot create {address}: {why}", "set SUPER_STORE to another place")
    free = sized(shutil.disk_usage(above).free)
    return good(f"{address} will be created when a job first runs; {free} are free there")


def _judged(store: Store) -> Finding:
    """Write and remove a mark, read a record, and check the free space."""
    instance = uuid.uuid4().hex
    try:
        store.touch(instance)
        store.forget(instance)
    except StoreError as error:
        return doubtful(
            f"it can be read but not written: {error}", "records that it lacks are decoded every time"
        )
    packs = store.packs()
    summary = f"{store.address} can be written; {counted(len(packs), 'pack')}, {sized(sum(packs.values()))}"
    measured: dict[str, float | str] = {"packs": len(packs), "size_bytes": sum(packs.values())}
    if broken := _broken(store, packs):
        return doubtful(f"{summary}; {broken}", "superdl store verify can drop broken packs", **measured)
    if is_bucket(store.address):
        return good(summary, **measured)
    disk = shutil.disk_usage(store.address)
    measured["free_bytes"] = disk.free
    if disk.free < _LEFT_FREE * disk.total:
        used = 1 - disk.free / disk.total
        why = f"{summary}; its disk is {used:.1%} full, and the last 10% must stay free"
        return doubtful(
            why, "free space with superdl store prune, or set SUPER_STORE to another disk", **measured
        )
    return good(f"{summary}; {sized(disk.free)} free", **measured)


def _broken(store: Store, packs: dict[str, int]) -> str:
    """Return what is wrong with the first record of one pack, or an empty string if it is good."""
    try:
        for pack, size in sorted(packs.items())[:1]:
            for entry in store.read_index(pack, size).entries[:1]:
                record = store.read(pack, int(entry["offset"]), int(entry["bytes"]))
                check_record(record, bytes(entry["id"]))
    except StoreGoneError:  # dropped just now
        return ""
    except (RecordError, StoreError) as error:
        return f"a pack is broken: {error}"
    return ""
