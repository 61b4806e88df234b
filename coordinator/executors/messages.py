"""Requests to functions, and their answers, which are checked: they come over a network."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.coordinator.executors.base import ExecutorError, FunctionRaisedError
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import counted
from superdl.super_wire.request import PrefetchRequest, PrefetchResult, RequestKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.catalog.dataset import Dataset

__all__ = [
    "NUMBER_MAX",
    "FunctionClock",
    "RecordPlaces",
    "Warmed",
    "fault_of_result",
    "gets_of",
    "read_object",
    "read_result",
    "read_warmed",
    "request_for",
    "warm_event",
]

_log = logging.getLogger(__name__)

# Upper limit of numbers in an answer.
NUMBER_MAX = 2**40

_DIGITS_MAX = 10
_HEX_DIGITS = 32
_WARM_VERSION = 1
_DIGEST = re.compile(r"[0-9a-f]{32}")
_SHOWN = 120
# Smaller differences of clocks may be an answer's travel time; a request lasts far longer.
_SAME_S = 5.0


class RecordPlaces(NamedTuple):
    """Places of records in the store; ``pack_of``: an index in ``packs`` plus one, 0 if unknown."""

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
    """Make a request for samples of a dataset, by their places in its catalog.

    A restore has ``places``, all known; ``golden`` is the fingerprint of the
    decoder of saved records.
    """
    catalog, ids = dataset.catalog, dataset.ids(indices, epoch).hex()
    return PrefetchRequest(
        request_id=request_id,
        bucket=catalog.bucket,
        recipe=dataset.recipe.json,
        epoch=epoch,
        cache=cache,
        expires_at=time.time() + expires_in_s,
        ids=tuple(ids[at : at + _HEX_DIGITS] for at in range(0, len(ids), _HEX_DIGITS)),
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


def warm_event(cache: str) -> dict[str, Any]:
    """Return the event that prepares a function, connected to ``cache`` unless that is empty."""
    return {"super_warm": _WARM_VERSION, "cache": cache}


@dataclass(frozen=True, slots=True)
class Warmed:
    """A function's answer to a warm event. ``clock_s`` is 0 if it reported no time."""

    function_version: str
    fingerprint: str
    clock_s: float = 0.0


def read_object(text: str | bytes, who: str) -> dict[str, Any]:
    """Parse the JSON object answered by ``who``; ``FunctionRaisedError`` if it is none."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FunctionRaisedError(f"{who} answered {_shown(text)}, which is no JSON") from error
    if not isinstance(answer, dict):
        raise FunctionRaisedError(f"{who} answered {_shown(text)}, which is no result")
    return answer


def read_warmed(answer: Mapping[str, Any], who: str, remedy: str) -> Warmed:
    """Read the answer to a warm event; ``ExecutorError``, with ``remedy``: it is not SUPER's function."""
    version, digest = answer.get("function_version"), answer.get("golden")
    if not isinstance(version, str) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ExecutorError(f"{who} answered a warm event with {_shown(json.dumps(answer))}: {remedy}")
    clock_s = answer.get("clock_s")
    if not isinstance(clock_s, float) or not math.isfinite(clock_s):
        clock_s = 0.0
    return Warmed(version, digest, clock_s)


def read_result(answer: dict[str, Any], request_id: str, who: str) -> PrefetchResult:
    """Read the answer to a prefetch request; ``FunctionRaisedError`` if it is none, or of another."""
    try:
        result = PrefetchResult.from_mapping(answer)
    except ConfigError as error:
        raise FunctionRaisedError(f"{who} answered what is no prefetch result: {error}") from error
    if result.request_id != request_id:
        raise FunctionRaisedError(
            f"{who} was asked for request {request_id} and answered for {result.request_id[:80]!r}"
        )
    return result


def gets_of(result: PrefetchResult) -> int:
    """Return the number of source requests: one per sample unless the function reports fewer."""
    return result.source_requests or sum(size > 0 for size in result.source_bytes)


def fault_of_result(result: PrefetchResult, samples: int) -> str:
    """Return why an answer is useless; empty if it is fine."""
    if len(result.outcomes) != samples:
        return f"the function answered for {len(result.outcomes)} of {counted(samples, 'sample')}"
    if not all(offset.isdecimal() and len(offset) < _DIGITS_MAX for offset in result.messages):
        return "the function's messages are not numbered by sample"
    numbers = (
        *(result.record_bytes, result.source_bytes, result.fetch_us, result.decode_us, result.push_us),
        (result.duration_us, result.billed_us, result.memory_mb, result.store_requests, result.store_bytes),
        (result.source_requests,),
        *(result.offsets, result.lengths),
    )
    if any(column and not 0 <= min(column) <= max(column) <= NUMBER_MAX for column in numbers):
        return f"the function answered with a number that is not from 0 to {NUMBER_MAX}"
    return ""


def _shown(text: str | bytes) -> str:
    start = text[:_SHOWN]
    return repr(start if isinstance(start, str) else start.decode(errors="replace"))


class FunctionClock:
    """Difference between the clock of functions on other machines and this machine's."""

    def __init__(self) -> None:
        # A request carries the time until which it is useful, on the functions'
        # clock. On ours, if that is seconds off, all would have expired on arrival.
        self.ahead_s = 0.0

    def told(self, clock_s: float) -> None:
        """Note the function's clock, Unix time, of an answer that just arrived; 0 for none."""
        if not clock_s:
            return
        ahead_s = clock_s - time.time()
        if abs(ahead_s - self.ahead_s) < _SAME_S:
            return
        self.ahead_s = ahead_s if abs(ahead_s) >= _SAME_S else 0.0
        if self.ahead_s:
            _log.warning(
                "this machine's clock is %.0f s %s that of the functions: requests carry their time; set "
                "the clock right (NTP), since AWS refuses calls that are 5 minutes off",
                abs(ahead_s),
                "behind" if ahead_s > 0 else "ahead of",
            )
        else:
            _log.info("this machine's clock is that of the functions again")
