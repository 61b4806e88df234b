"""Queries about a dataset that require no job."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from superdl.sampler.distributed import is_own, rank_in_run, run_id
from superdl.sampler.embedded.embedded import embedded_for, query_done
from superdl.sampler.rpc.client import FIRST_CONTACT, Client
from superdl.sampler.rpc.connection import checked_address
from superdl.super_wire.batch_ref import DatasetBinding
from superdl.super_wire.credentials import CoordinatorCredentials
from superdl.super_wire.display import shown_lines
from superdl.super_wire.errors import SourceError, UnknownJobError
from superdl.super_wire.labels import SampleList, joined, unpack_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from superdl.super_wire.batch_ref import Bindable
    from superdl.super_wire.labels import Labels

_LOG = logging.getLogger(__name__)

_MAX_REGISTRATIONS = 5  # per query, if the coordinator keeps restarting


def client_of(coordinator: str | None, run: str, *, alone: bool, for_query: bool = False) -> Client:
    """Return a client for the given coordinator, else ``SUPER_COORDINATOR``, else an embedded one.

    ``alone`` means that this is the run's only process, so an embedded coordinator ends with it.
    ``for_query`` means that no sampler is being created, so an embedded coordinator may end sooner.
    """
    if coordinator is not None:
        return Client(checked_address(coordinator, "coordinator="))
    if os.environ.get("SUPER_COORDINATOR"):
        return Client(checked_address(os.environ["SUPER_COORDINATOR"], "SUPER_COORDINATOR"))
    embedded = embedded_for(run, for_query=for_query)
    none = CoordinatorCredentials()  # only this user can reach it
    return Client(embedded.coordinator, explain=embedded.failure, alone=alone, credentials=none)


def log_warnings(dataset: Bindable, warnings: Iterable[str], rank: int) -> None:
    """Log each of the coordinator's warnings about a dataset once, on rank 0."""
    for warning in warnings if rank == 0 else ():
        if warning not in dataset.warned:
            dataset.warned.add(warning)
            _LOG.warning("%s", shown_lines(warning))


def binding_of(info: Any, *, cache: str = "", store: str = "") -> DatasetBinding:
    """Convert a ``Dataset`` message. ``cache`` and ``store`` come from the job, if there is one."""
    return DatasetBinding(
        dataset_id=info.dataset_id,
        fingerprint=info.fingerprint,
        size=info.size,
        classes=tuple(info.classes),
        label_dtype=info.label_dtype,
        cache=cache,
        store=store,
    )


def describe(dataset: Bindable, *, renew: bool = False) -> DatasetBinding:
    """Wait for the source to be listed, and return the dataset's properties. No job is opened.

    With ``renew``, repeat the listing if that is due, as a new sampler would, to find new files.

    Raises:
        SourceError: the source is missing, empty or forbidden, or its listing makes no progress.
        CoordinatorError, EmbeddedError: no coordinator can be reached, or it rejects the query.
    """
    with _querying(dataset) as (client, run):
        info, _ = client.register(dataset, run, renew=renew and is_own(run), begins=True)
    log_warnings(dataset, info.warnings, rank_in_run(None, None)[0])
    return binding_of(info)


@contextmanager
def _querying(dataset: Bindable) -> Iterator[tuple[Client, str]]:
    """Yield a client and the run id for a query about the dataset."""
    run = run_id()
    client = client_of(dataset.coordinator, run, alone=False, for_query=True)
    try:
        with client.hold():
            yield client, run
    finally:
        query_done(client.address)


def list_samples(dataset: Bindable, fingerprint: bytes) -> SampleList:
    """Return the path and label of every sample. Raises ``SourceError`` if the fingerprint has changed."""
    pages, label_dtype = _fetch_pages(dataset, fingerprint, with_keys=True)
    keys, lengths = (b"".join(parts) for parts in zip(*((p.keys, p.key_lengths) for p in pages), strict=True))
    return SampleList(pages[0].bucket, keys, lengths, _labels_of(pages, label_dtype))


def list_labels(dataset: Bindable, fingerprint: bytes) -> Labels:
    """Return the labels of all samples, read-only, of shape (samples, ...) or as ``RaggedLabels``.

    Raises ``SourceError`` if the fingerprint has changed.
    """
    return _labels_of(*_fetch_pages(dataset, fingerprint, with_keys=False))


def _labels_of(pages: Sequence[Any], label_dtype: str) -> Labels:
    return joined([unpack_labels(page.labels, label_dtype) for page in pages])


def _fetch_pages(dataset: Bindable, fingerprint: bytes, *, with_keys: bool) -> tuple[list[Any], str]:
    with _querying(dataset) as (client, run):
        for _ in range(_MAX_REGISTRATIONS):
            info, _end_s = client.register(dataset, run)
            if info.fingerprint != fingerprint:
                raise SourceError(
                    f"{dataset.source} has changed since its length or classes were requested. Create a new "
                    "SuperDataset"
                )
            try:
                pages = list(_iter_pages(client, info, with_keys=with_keys))
            except UnknownJobError:  # the coordinator restarted; registering is idempotent
                continue
            if all(page.fingerprint == fingerprint for page in pages):
                return pages, info.label_dtype
    raise UnknownJobError(
        f"the coordinator at {client.address} lost or re-listed {dataset.source} "
        f"{_MAX_REGISTRATIONS} times in a row"
    )


def _iter_pages(client: Client, info: Any, *, with_keys: bool) -> Iterator[Any]:
    """Yield the pages of a listing, up to and including the first page of a different one."""
    from superdl.super_wire import coordinator_pb2 as pb

    start = 0
    while start < info.size:
        request = pb.GetSamplesRequest(dataset_id=info.dataset_id, start=start, with_keys=with_keys)
        page = client.call("GetSamples", request, FIRST_CONTACT)
        yield page
        if page.fingerprint != info.fingerprint:
            return
        start += max(1, len(unpack_labels(page.labels, info.label_dtype)))
