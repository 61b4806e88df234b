"""The result of every sample of a request, column by column, filled by all stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.super_wire.record import CHANGED_SINCE
from superdl.super_wire.redaction import clean_text
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from superdl.lambda_prefetch.push import Pushed
    from superdl.super_wire.request import PrefetchRequest

__all__ = ["ResultColumns"]

_MAX_MESSAGE = 2000  # characters; an error may quote input of any length

_IN_CACHE = frozenset({Outcome.CACHED, Outcome.TOMBSTONE})
_COLUMNS = ("outcomes", "fetch_us", "decode_us", "push_us", "source_bytes", "record_bytes")
_PLACES = ("offsets", "lengths")
_TOLD = ("messages", "pack", "store_trouble", "store_requests", "store_bytes", "source_requests")


class ResultColumns:
    """The result of every sample of a request, column by column, as the function returns it."""

    def __init__(self, request: PrefetchRequest) -> None:
        count = len(request.ids)
        self._request = request
        self.outcomes = [Outcome.EXPIRED] * count
        self.fetch_us = [0] * count
        self.decode_us = [0] * count
        self.push_us = [0] * count
        self.source_bytes = [0] * count
        self.record_bytes = [0] * count
        self.messages: dict[str, str] = {}
        self.stuck = False
        """Whether a thread of this process still decodes a sample that was given up."""
        self.pack = ""
        self.offsets: list[int] = []
        self.lengths: list[int] = []
        self.store_trouble = ""
        self.store_requests = 0
        self.store_bytes = 0
        self.source_requests = 0

    def fail(self, index: int, outcome: Outcome, why: str) -> str:
        """Note the outcome of a sample that is not cached; return its message."""
        self.outcomes[index] = outcome
        if outcome is Outcome.CHANGED:
            why = f"{CHANGED_SINCE}: {why}"
        message = clean_text(f"{self._request.bucket}/{self._request.name_of(index)}: {why}")[:_MAX_MESSAGE]
        self.messages[str(index)] = message
        return message

    def settle(self, results: list[Pushed]) -> None:
        """Note the cache's answers; a sample without one does not count as cached."""
        answered = {pushed.index for pushed in results}
        for index, outcome in enumerate(self.outcomes):
            if outcome in _IN_CACHE and index not in answered:
                self.fail(index, Outcome.CACHE_ERROR, "it was not stored")
        for pushed in results:
            self.push_us[pushed.index] = pushed.push_us
            if pushed.refusal:
                # The only refusal whose remedy is the coordinator's: room.
                is_full = pushed.refusal.startswith("OOM")
                outcome = Outcome.CACHE_FULL if is_full else Outcome.CACHE_ERROR
                self.fail(pushed.index, outcome, f"the cache did not take it: {pushed.refusal}")
            else:
                self.record_bytes[pushed.index] = pushed.record_bytes

    def told(self) -> dict[str, Any]:
        """Return the fields of a ``PrefetchResult`` that are known here."""
        columns = {name: tuple(getattr(self, name)) for name in _COLUMNS + _PLACES}
        return columns | {name: getattr(self, name) for name in _TOLD}
