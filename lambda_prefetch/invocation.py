"""An invocation, with its request, its deadline and the outcome of every sample."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from superdl.super_wire.display import clean_text
from superdl.super_wire.record import CHANGED_SINCE
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from superdl.lambda_prefetch.push import Pushed
    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.super_wire.request import PrefetchRequest

_MAX_MESSAGE = 2000  # characters; an error may quote input of any length
_IN_CACHE = frozenset({Outcome.CACHED, Outcome.TOMBSTONE})

_COLUMNS = ("outcomes", "record_bytes", "offsets", "lengths")
_TOTALS = ("fetch_us", "decode_us", "push_us", "source_bytes")
_VALUES = ("messages", "source_requests", "pack", "store_trouble", "store_requests", "store_bytes")


class Invocation:
    """A request in progress, with its results stored as columns.

    No work starts after ``expires_at_s``, a time on the monotonic clock.
    """

    def __init__(self, request: PrefetchRequest, settings: FunctionSettings, expires_at_s: float) -> None:
        count = request.count
        self.request, self.settings, self.expires_at_s = request, settings, expires_at_s
        self.stuck = False  # a thread of this process is still decoding an abandoned sample
        self.outcomes = [Outcome.EXPIRED] * count
        self.fetch_us = [0] * count
        self.decode_us = [0] * count
        self.push_us = [0] * count
        self.source_bytes = [0] * count
        self.record_bytes = [0] * count
        self.messages: dict[str, str] = {}
        self.source_requests = 0
        self.pack = ""
        self.offsets: list[int] = []
        self.lengths: list[int] = []
        self.store_trouble = ""
        self.store_requests = self.store_bytes = 0

    def sample_id(self, index: int) -> bytes:
        """Return a sample's id."""
        return self.request.sample_id(index)

    def expired(self, margin_s: float = 0.0) -> bool:
        """Return whether the request expires within ``margin_s`` seconds."""
        return time.monotonic() >= self.expires_at_s - margin_s

    def fail(self, index: int, outcome: Outcome, reason: str) -> str:
        """Record the outcome of a sample that was not cached, and return its message."""
        self.outcomes[index] = outcome
        if outcome is Outcome.CHANGED:
            reason = f"{CHANGED_SINCE}: {reason}"
        message = clean_text(f"{self.request.bucket}/{self.request.name_of(index)}: {reason}")[:_MAX_MESSAGE]
        self.messages[str(index)] = message
        return message

    def fail_all(self, indices: Iterable[int], outcome: Outcome, reason: str) -> None:
        """Record the same outcome for several samples."""
        for index in indices:
            self.fail(index, outcome, reason)

    def settle(self, results: list[Pushed]) -> None:
        """Record the cache's replies. A sample without a reply does not count as cached."""
        answered = {pushed.index for pushed in results}
        for index, outcome in enumerate(self.outcomes):
            if outcome in _IN_CACHE and index not in answered:
                self.fail(index, Outcome.CACHE_ERROR, "not stored in the cache")
        for pushed in results:
            self.push_us[pushed.index] = pushed.push_us
            if pushed.refusal:
                # Lack of room is the only refusal that the coordinator can remedy.
                is_full = pushed.refusal.startswith("OOM")
                outcome = Outcome.CACHE_FULL if is_full else Outcome.CACHE_ERROR
                self.fail(pushed.index, outcome, f"the cache refused the record: {pushed.refusal}")
            else:
                self.record_bytes[pushed.index] = pushed.record_bytes

    def fields(self) -> dict[str, Any]:
        """Return the fields of ``PrefetchResult`` that were collected here."""
        columns = {name: tuple(getattr(self, name)) for name in _COLUMNS}
        values = {name: getattr(self, name) for name in _VALUES}
        values |= {name: sum(getattr(self, name)) for name in _TOTALS}
        return columns | values
