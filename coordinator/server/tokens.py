"""Tokens: who may call a coordinator. All tokens are equal; each lets in to everything.

A token is compared in constant time, and neither logs nor errors repeat one, true or false.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import TYPE_CHECKING, Any

import grpc

from superdl.coordinator.server.trust import file_stamp
from superdl.super_wire.coordinator_credentials import read_tokens, tokens_given
from superdl.super_wire.errors import ConfigError, CoordinatorTrustError
from superdl.super_wire.protocol import ERROR_METADATA_KEY, TOKEN_METADATA_KEY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["HEALTH_SERVICE", "TokenInterceptor", "Tokens"]

_log = logging.getLogger(__name__)

HEALTH_SERVICE = "grpc.health.v1.Health"
_SCHEME = "Bearer "

_REMEDY = (
    "set SUPER_TOKEN or SUPER_TOKEN_FILE where the sampler (or superdl) runs, to one of the coordinator's"
)
_MISSING = f"this coordinator asks for a token: {_REMEDY}"
_WRONG = f"the coordinator does not know this token: {_REMEDY}"


class Tokens:
    """The tokens that are let in now; those of a file are read again when it changes. One that is emptied
    lets nobody in; one that is gone or broken changes nothing, since it may be half written.

    Args:
        token: several are separated by commas.
        token_file: one in each line.

    Raises:
        ConfigError: the file cannot be read, or what is in either is no token.
    """

    def __init__(self, token: str, token_file: str = "") -> None:
        self._own = _digests(tokens_given(token, "token"))
        self._file = token_file
        self._stamp = file_stamp(token_file) if token_file else ()
        self._from_file = _digests(read_tokens(token_file, "token_file")) if token_file else ()

    def accept(self, presented: str) -> bool:
        """Whether this is one of them; takes as long for one that nearly is."""
        if self._file and (stamp := file_stamp(self._file)) != self._stamp:
            self._stamp = stamp
            self._renew()
        digest = _digest(presented)
        return sum(hmac.compare_digest(digest, known) for known in (*self._own, *self._from_file)) > 0

    def _renew(self) -> None:
        try:
            self._from_file = _digests(read_tokens(self._file, "token_file", may_be_none=True))
        except ConfigError as error:
            _log.error("the tokens stay as they were: %s; to let nobody in, empty the file", error)
        else:
            level = logging.INFO if self._from_file else logging.WARNING
            _log.log(level, "token_file has changed and now holds %d tokens", len(self._from_file))


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # so in the stubs alone
    """Turns away whoever shows no token, or a wrong one, on every method but the health service's Check:
    probes have no token, and learn only whether it serves.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Hand the call on, or answer it with UNAUTHENTICATED."""
        if str(handler_call_details.method) == f"/{HEALTH_SERVICE}/Check":
            return await continuation(handler_call_details)
        shown = [
            value for key, value in handler_call_details.invocation_metadata if key == TOKEN_METADATA_KEY
        ]
        if len(shown) != 1 or not str(shown[0]).startswith(_SCHEME):
            return _TURN_AWAY[_MISSING]
        if not self._tokens.accept(str(shown[0])[len(_SCHEME) :]):
            return _TURN_AWAY[_WRONG]
        return await continuation(handler_call_details)


def _turning_away(message: str) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED, message, ((ERROR_METADATA_KEY, CoordinatorTrustError.__name__),)
        )

    # Of a unary handler grpc.aio would wait for the call's message first: strangers would hold calls without
    # one, and memory with many large ones. A stream's handler runs at once, and this one reads nothing.
    return grpc.stream_unary_rpc_method_handler(refuse)


_TURN_AWAY = {message: _turning_away(message) for message in (_MISSING, _WRONG)}


def _digests(tokens: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(map(_digest, tokens))


def _digest(token: str) -> bytes:
    """Of one length for all, so that comparing two tells nothing of the length of either."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
