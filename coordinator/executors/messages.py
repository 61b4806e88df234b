"""Requests to functions, and checks of the results, which arrive over a network."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.coordinator.core import FailureKind
from superdl.coordinator.executors.base import ExecutorError, one_line
from superdl.super_wire.display import counted
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import PrefetchRequest, PrefetchResult, RequestKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.catalog.dataset import Dataset

_SHOWN = 120


class RecordPlaces(NamedTuple):
    """Record locations in the store. ``pack_of`` is an index into ``packs`` plus one, or 0 if unknown.

    Packs are ordered by their first record.
    """

    packs: tuple[str, ...]
    pack_of: NDArray[np.uint32]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint32]


def request_for(
    dataset: Dataset,
    indices: NDArray[np.int64],
    *,
    epoch: int,
    request_id: str,
    cache: str,
    expires_in_s: float,
    kind: RequestKind = RequestKind.DECODE,
    store: str = "",
    places: RecordPlaces | None = None,
    golden: str = "",
) -> PrefetchRequest:
    """Create a request for samples of a dataset, given their indices in its catalog.

    A restore needs ``places`` with every location known. When saving, ``golden`` is the fingerprint of the
    decoder that produced the records.
    """
    catalog = dataset.catalog
    return PrefetchRequest(
        request_id=request_id,
        bucket=catalog.bucket,
        recipe=dataset.recipe.json,
        epoch=epoch,
        cache=cache,
        expires_in_s=expires_in_s,
        ids=dataset.ids(indices, epoch),
        kind=kind,
        store=store,
        packs=places.packs if places else (),
        # Requests count packs from 0.
        pack_of=tuple((places.pack_of - 1).tolist()) if places else (),
        offsets=tuple(places.offsets.tolist()) if places else (),
        lengths=tuple(places.lengths.tolist()) if places else (),
        alias=catalog.alias,
        prefix=catalog.prefix,
        golden=golden,
        fields=dataset.recipe.beside,
        **catalog.part_columns(indices, dataset.recipe.beside),
    )


def encoder(request: PrefetchRequest) -> Callable[..., bytes]:
    """Return a function that encodes a request with its remaining time. Keyword arguments replace fields.

    Call that function only once a slot is free, because waiting may use up seconds of the request's time.
    """
    expires_at_s = time.monotonic() + request.expires_in_s

    def encode(**changes: Any) -> bytes:
        remaining_s = max(0.0, expires_at_s - time.monotonic())
        return replace(request, expires_in_s=remaining_s, **changes).to_json().encode()

    return encode


def read_object(text: str | bytes, who: str) -> dict[str, Any]:
    """Parse a reply from ``who``, or raise ``ExecutorError`` if it is not a JSON object."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"{who} answered {shown_start(text)}, which is not JSON") from error
    if not isinstance(answer, dict):
        raise _unreadable(f"{who} answered {shown_start(text)}, which is not a result")
    return answer


def read_result(text: str | bytes, request: PrefetchRequest, who: str) -> PrefetchResult:
    """Parse the result of a prefetch request, or raise ``ExecutorError`` for any other reply.

    Each message in the result becomes a single printable line.
    """
    try:
        result = PrefetchResult.from_mapping(read_object(text, who))
    except ConfigError as error:
        raise _unreadable(f"{who} sent an invalid prefetch result: {error}") from error
    if result.request_id != request.request_id:
        words = f"{who} was sent request {request.request_id}, but answered {result.request_id[:80]!r}"
        raise _unreadable(words)
    if len(result.outcomes) != request.count:
        samples = counted(request.count, "sample")
        raise _unreadable(f"{who} returned outcomes for {len(result.outcomes)} of {samples}")
    messages = {index: one_line(message) for index, message in result.messages.items()}
    return replace(result, messages=messages, store_trouble=one_line(result.store_trouble))


def _unreadable(words: str) -> ExecutorError:
    return ExecutorError(words, FailureKind.RAISED)


def shown_start(text: str | bytes) -> str:
    """Return the start of a reply for use in a message."""
    start = text[:_SHOWN]
    return repr(start if isinstance(start, str) else start.decode(errors="replace"))
