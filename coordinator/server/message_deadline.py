"""Calls whose message does not come, or is no message: they end after a while, or at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["MessageDeadline"]

_log = logging.getLogger(__name__)


class MessageDeadline(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # so in the stubs alone
    """Ends unary calls whose message has not come ``timeout_s`` after they began, or is no message.

    grpc.aio itself waits for the message before it runs anything of ours, for as long as the caller likes,
    and writes a traceback for bytes that are none. So each call is taken as a stream of bytes, of which one
    message is read.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._ending: set[asyncio.Task[None]] = set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Put the wait for the message before the handler."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler  # type: ignore[no-any-return]  # it is what was asked for
        return grpc.stream_unary_rpc_method_handler(
            partial(self._answer, handler.unary_unary, handler.request_deserializer or bytes),
            None,
            handler.response_serializer,
        )

    async def _answer(
        self,
        method: Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]],
        read: Callable[[bytes], Any],
        _: Any,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> Any:
        # A read that is cancelled would leave gRPC writing to memory that is gone: the call is ended instead,
        # which ends the read.
        limit = asyncio.get_running_loop().call_later(self._timeout_s, self._end, context)
        try:
            message = await context.read()
        finally:
            limit.cancel()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # unknown to the stubs
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without its message")
        try:
            request = read(message)
        except DecodeError as error:
            about = {"cause": "malformed call"}
            _log.warning("a call's message of %d bytes is malformed: %s", len(message), error, extra=about)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the call's message is malformed: {error}")
        return await method(request, context)

    def _end(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        ending = asyncio.get_running_loop().create_task(self._abort(context))
        self._ending.add(ending)  # the loop itself holds tasks weakly
        ending.add_done_callback(self._ending.discard)

    async def _abort(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        with contextlib.suppress(grpc.aio.AbortError):  # it is for the handler, which hears of it too
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"the call's message has not come in {self._timeout_s:g} s"
            )
