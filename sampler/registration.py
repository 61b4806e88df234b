"""A dataset's standing with a coordinator, without a job: which one is asked, and what it tells."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from superdl.sampler.distributed import is_own, place_in_run, run_id
from superdl.sampler.embedded.embedded import embedded_for, question_answered
from superdl.sampler.rpc.client import FIRST_CONTACT, Client
from superdl.sampler.rpc.connection import checked_address
from superdl.super_wire.batch_ref import DatasetBinding
from superdl.super_wire.coordinator_credentials import CoordinatorCredentials
from superdl.super_wire.errors import SourceError, UnknownJobError
from superdl.super_wire.labels import joined, unpack_labels
from superdl.super_wire.redaction import shown, shown_lines
from superdl.super_wire.sample_list import SampleList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from superdl.super_wire.batch_ref import Bindable
    from superdl.super_wire.labels import Labels

__all__ = ["binding_of", "client_of", "describe", "list_labels", "list_samples", "tells_progress", "warn_of"]

_LOG = logging.getLogger(__name__)

_MAX_REGISTRATIONS = 5  # of one question, at a coordinator that forgets


def client_of(coordinator: str | None, run: str, *, alone: bool, for_question: bool = False) -> Client:
    """Speaks to the coordinator of this address, else to ``SUPER_COORDINATOR``, else to the embedded one.

    ``alone``: nobody else is in the run, so that the embedded one ends with this process. ``for_question``:
    no sampler is made, so that it may end sooner.
    """
    if coordinator is not None:
        return Client(checked_address(coordinator, "coordinator="))
    if os.environ.get("SUPER_COORDINATOR"):
        return Client(checked_address(os.environ["SUPER_COORDINATOR"], "SUPER_COORDINATOR"))
    embedded = embedded_for(run, for_question=for_question)
    own = CoordinatorCredentials()  # it is this user's alone, and asks for nothing
    return Client(embedded.coordinator, explain=embedded.failure, alone=alone, credentials=own)


def tells_progress(dataset: Bindable) -> Callable[[int], None]:
    """Log how far the listing of a dataset has come."""
    return lambda listed: _LOG.info("listing %s: %d samples so far", shown(dataset.source), listed)


def warn_of(dataset: Bindable, warnings: Iterable[str], rank: int) -> None:
    """Log what a coordinator warns of a dataset: once, and on the first rank."""
    for warning in warnings if rank == 0 else ():
        if warning not in dataset.warned:
            dataset.warned.add(warning)
            _LOG.warning("%s", shown_lines(warning))


def binding_of(facts: Any, *, cache: str = "", store: str = "") -> DatasetBinding:
    """What a coordinator's answer (a message) says of a dataset; cache and store are a job's."""
    return DatasetBinding(
        dataset_id=facts.dataset_id,
        fingerprint=facts.fingerprint,
        size=facts.size,
        classes=tuple(facts.classes),
        label_dtype=facts.label_dtype,
        cache=cache,
        store=store,
    )


def describe(dataset: Bindable, *, renew: bool = False) -> DatasetBinding:
    """What the dataset's coordinator knows of it, once it has listed the source. Opens no job.

    ``renew``: a sampler will be made, and sees files that were added, as it says.

    Raises:
        SourceError: the source is missing, empty, forbidden, or its listing stands still.
        CoordinatorError, EmbeddedError: there is no coordinator to speak to, or it refuses.
    """
    with _asking(dataset) as (client, run):
        facts, _ = client.register(dataset, run, renew=renew and is_own(run), listed=tells_progress(dataset))
    warn_of(dataset, facts.warnings, place_in_run(None, None)[0])
    return binding_of(facts)


@contextmanager
def _asking(dataset: Bindable) -> Iterator[tuple[Client, str]]:
    """A client for a question about the dataset, and the run id under which it is asked."""
    run = run_id()
    client = client_of(dataset.coordinator, run, alone=False, for_question=True)
    try:
        with client.hold():
            yield client, run
    finally:
        question_answered(client.address)


def list_samples(dataset: Bindable, fingerprint: bytes) -> SampleList:
    """Path and label of each sample; raises as :func:`describe`, and a ``SourceError`` where the source has
    another fingerprint by now.
    """
    pages, label_dtype = _pages(dataset, fingerprint, with_keys=True)
    keys, lengths = (b"".join(parts) for parts in zip(*((p.keys, p.key_lengths) for p in pages), strict=True))
    return SampleList(pages[0].bucket, keys, lengths, _labels_of(pages, label_dtype))


def list_labels(dataset: Bindable, fingerprint: bytes) -> Labels:
    """The labels alone, read-only, an array of shape (samples, ...) or ``RaggedLabels``; raises as
    :func:`list_samples`.
    """
    return _labels_of(*_pages(dataset, fingerprint, with_keys=False))


def _labels_of(pages: Sequence[Any], label_dtype: str) -> Labels:
    return joined([unpack_labels(page.labels, label_dtype) for page in pages])


def _pages(dataset: Bindable, fingerprint: bytes, *, with_keys: bool) -> tuple[list[Any], str]:
    """All pages (messages) of the dataset's samples, and the dtype of their labels."""
    with _asking(dataset) as (client, run):
        for _ in range(_MAX_REGISTRATIONS):
            facts, _end_s = client.register(dataset, run, listed=tells_progress(dataset))
            if facts.fingerprint != fingerprint:
                raise SourceError(
                    f"{dataset.source} has changed since its length or classes were asked for: make a new "
                    "SuperDataset"
                )
            try:
                pages = list(_pages_of(client, facts, with_keys=with_keys))
            except UnknownJobError:  # the coordinator was restarted meanwhile; registering is idempotent
                continue
            if all(page.fingerprint == fingerprint for page in pages):  # else it has listed again since
                return pages, facts.label_dtype
    raise UnknownJobError(
        f"the coordinator at {client.address} forgot {dataset.source}, or listed it again, "
        f"{_MAX_REGISTRATIONS} times in a row"
    )


def _pages_of(client: Client, facts: Any, *, with_keys: bool) -> Iterator[Any]:
    """Pages up to the first that is of another listing."""
    from superdl.super_wire import coordinator_pb2 as pb

    start = 0
    while start < facts.size:
        request = pb.GetSamplesRequest(dataset_id=facts.dataset_id, start=start, with_keys=with_keys)
        page = client.call("GetSamples", request, FIRST_CONTACT)
        yield page
        if page.fingerprint != facts.fingerprint:
            return
        start += max(1, len(unpack_labels(page.labels, facts.label_dtype)))
