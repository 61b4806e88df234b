"""Checks of where samples are stored: the source's listing, and the store of decoded records."""

from __future__ import annotations

import os
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.doctor.checking import Finding, bad, doubtful, good, skipped
from superdl.super_wire.display import counted, sized
from superdl.super_wire.errors import (
    ConfigError,
    StoreError,
    StoreGoneError,
)
from superdl.super_wire.store import is_bucket

if TYPE_CHECKING:
    from superdl.doctor.checking import Case
    from superdl.super_wire.store import Store

_ENOUGH = 20_000  # samples: twenty requests to S3
_SHOWN = 4


def check_listing(case: Case) -> Finding:
    """Check that this machine can list the source as a coordinator would. Large listings are cut short."""
    if not case.source:
        return skipped("no source was passed", "pass one: superdl doctor s3://bucket/prefix")
    if case.elsewhere:
        return skipped("the coordinator lists the source: the sample below shows whether it can")
    from superdl.coordinator.catalog import ListingCancelledError, list_source, parse_source

    source = parse_source(case.source)
    if source.is_file and not Path(source.directory).is_dir():
        return bad(f"there is no directory {source.directory}", "check the path, or pass s3://bucket/prefix")
    enough = threading.Event()

    def count(listed: int | None) -> None:
        if listed is not None and listed >= _ENOUGH:
            enough.set()

    try:
        catalog = list_source(case.source, case.key_list, count, enough)
    except ListingCancelledError:
        return good(f"{case.source} can be listed: {_ENOUGH:,} samples or more")
    classes = len(catalog.classes)
    classes_text = ", ".join(catalog.classes[:_SHOWN]) + (", ..." if classes > _SHOWN else "")
    summary = counted(len(catalog.keys), "sample") + (
        f" of {classes:,} classes ({classes_text})" if classes else ""
    )
    return good(f"{case.source} can be listed: {summary}")


def check_store(case: Case) -> Finding:
    """Check that this machine can use the store."""
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
            return skipped(str(error), "a coordinator creates its store in an existing bucket")
        above = next(folder for folder in Path(address).parents if folder.is_dir())
        if not os.access(above, os.W_OK | os.X_OK):
            return bad(
                f"cannot create {address}: {above} is not writable", "set SUPER_STORE to another location"
            )
        return skipped(f"{address} is created when a job first runs")
    except StoreError as error:
        return bad(str(error), "set SUPER_STORE to another location, or to none for no store")


def _of_the_coordinator(address: str) -> Finding:
    from superdl.super_wire.store import open_store

    if not address:
        return skipped("the coordinator has no store", "start it with --store to decode once (docs/store.md)")
    if is_bucket(address):
        return skipped(f"the coordinator and its functions use {address}; readers read only the cache")
    try:
        open_store(address, create=False, read_only=True)
    except StoreError as error:
        why = f"this machine cannot access {address}, so it gets its records through the cache ({error})"
        return skipped(why, "mount it here at the same path to let readers read packs themselves")
    return good(f"{address} is accessible from here, so readers read packs themselves")


def _judged(store: Store) -> Finding:
    """Check a store by writing and removing a marker, and count its packs."""
    instance = uuid.uuid4().hex
    try:
        store.touch(instance)
        store.forget(instance)
    except StoreError as error:
        return doubtful(f"can be read but not written: {error}", "missing records are decoded every time")
    packs = store.packs()
    summary = f"{counted(len(packs), 'pack')}, {sized(sum(packs.values()))}"
    return good(f"{store.address} can be written; {summary}")
