"""Answers that no call carries: the outcome of an invocation, appended to a stream in the cache.

A request that names a stream (``answer_to``) was sent without anybody waiting for its return, so its function
appends what it would have answered, or why it failed as a whole, once it is done. An append that cannot be
done is raised: then the platform counts an error, and who waits runs out of patience. One that may have been
done is done again, since second answers are dropped. The stream is the coordinator's to make, with an expiry:
one that is gone is not made again, since nobody would ever delete it. What an entry holds is
:mod:`superdl.super_wire.request`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from superdl.lambda_prefetch.caches import keep_cache, take_cache
from superdl.super_wire.cache import Command, ErrorReply, exchange
from superdl.super_wire.errors import CacheError, ConfigError
from superdl.super_wire.keys import checked_outcome_stream
from superdl.super_wire.request import MAX_OUTCOME_BYTES, OUTCOME_FIELD, OUTCOME_STREAM_MAXLEN, pack_outcome

if TYPE_CHECKING:
    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.super_wire.request import Answer

__all__ = ["ReplyTo"]

_MAX_TEXT = 256
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """Where the answer to a request goes."""

    request_id: str
    cache: str
    stream: bytes

    @classmethod
    def of_event(cls, event: dict[str, Any]) -> Self | None:
        """Read from an event, which may be faulty otherwise; ``None`` if its answer is returned and no more.

        Raises:
            ConfigError: it wants an answer through the cache, and does not say where in a way that can be
                meant.
        """
        stream = event.get("answer_to", "")
        if stream == "":
            return None
        request_id, cache = event.get("request_id"), event.get("cache")
        if not all(isinstance(text, str) for text in (stream, request_id, cache)):
            raise ConfigError(
                "a request with answer_to names request_id, cache and answer_to, each as a text"
            )
        return cls(str(request_id)[:_MAX_TEXT], str(cache), checked_outcome_stream(stream))

    def send(self, answer: Answer, settings: FunctionSettings) -> None:
        """Append an answer to the stream.

        Raises:
            CacheError: the cache is unreachable or refuses, or has no such stream; nobody will learn of the
                outcome.
        """
        packed = pack_outcome(answer)
        if len(packed) > MAX_OUTCOME_BYTES:
            raise CacheError(
                f"the answer has {len(packed):,} bytes, more than the {MAX_OUTCOME_BYTES:,} that are read"
            )
        maxlen = b"%d" % OUTCOME_STREAM_MAXLEN
        command = (
            *(b"XADD", self.stream, b"NOMKSTREAM", b"MAXLEN", b"~", maxlen),
            *(b"*", OUTCOME_FIELD, packed),
        )
        nodes = take_cache(self.cache, settings)
        (reply,) = exchange(nodes, [Command.of(self.stream, *command)], timeout_s=_TIMEOUT_S)
        if isinstance(reply, CacheError | ErrorReply):
            nodes.close()
        else:
            keep_cache(self.cache, nodes)
        if isinstance(reply, CacheError):
            raise reply
        if reply is None:
            raise CacheError(
                f"the cache at {self.cache} has no stream for the outcome of request {self.request_id}: it "
                "was emptied, or the coordinator that asked has been gone for long"
            )
        if isinstance(reply, ErrorReply):
            raise CacheError(
                f"the cache at {self.cache} refuses the outcome of request {self.request_id}: {reply.text}"
            )
