"""What every call meets before it is carried out: a time limit for its message, and a look at its fields.

What a field may hold beside what else is known (a rank of a job's plan, a position of its epochs) is
:mod:`superdl.coordinator.server.service`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from superdl.super_wire.errors import ConfigError, PlanError, SuperError
from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

__all__ = ["MessageDeadline", "check_fields"]

_log = logging.getLogger(__name__)

_EPOCH_MAX = 2**40
_MAX_TEXT = 65_536
_MAX_BATCH_IDS = 4096
_MAX_JOBS_TOLD = 1024
_JOB_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,256}")  # part of a Redis key: ASCII, no braces, no bell's mark
_WHAT_A_JOB_IS = "a job's id has 1 to 256 letters, digits or characters of . _ : @ / + = -"


def _is_job(value: str) -> bool:
    return _JOB_ID.fullmatch(value) is not None


def _is_id(value: bytes) -> bool:
    return len(value) == ID_BYTES


class _Rule(NamedTuple):
    """What a field has to fulfil, and the error of one that does not."""

    holds: Callable[[Any], bool]
    error: type[SuperError]
    words: str


_TEXT = _Rule(
    lambda text: len(text) <= _MAX_TEXT,
    ConfigError,
    f"source, recipe, key list and run id have at most {_MAX_TEXT} characters each",
)
_RULES: dict[str, tuple[_Rule, ...]] = {
    **dict.fromkeys(("source", "recipe", "key_list", "run_id"), (_TEXT,)),
    "job": (_Rule(_is_job, ConfigError, _WHAT_A_JOB_IS),),
    "jobs": (
        _Rule(
            lambda names: len(names) <= _MAX_JOBS_TOLD,
            ConfigError,
            f"one call asks for at most {_MAX_JOBS_TOLD} jobs, or by naming none for all of them",
        ),
        _Rule(lambda names: all(map(_is_job, names)), ConfigError, _WHAT_A_JOB_IS),
    ),
    "dataset_id": (_Rule(_is_id, ConfigError, f"a dataset's id has {ID_BYTES} bytes"),),
    "batch_ids": (
        _Rule(
            lambda ids: len(ids) <= _MAX_BATCH_IDS,
            ConfigError,
            f"one call asks for at most {_MAX_BATCH_IDS} batches",
        ),
        _Rule(lambda ids: all(map(_is_id, ids)), ConfigError, f"a batch id has {ID_BYTES} bytes"),
    ),
    "epoch": (_Rule(lambda epoch: epoch <= _EPOCH_MAX, PlanError, f"epoch is from 0 to {_EPOCH_MAX}"),),
}
"""By field; others are bounded by their type, or by the job's plan."""


def check_fields(request: Message) -> None:
    """Refuse a request of which a field holds what none may.

    Raises:
        SuperError: which field, and what it may hold.
    """
    for field in request.DESCRIPTOR.fields:
        value: Any = getattr(request, field.name)
        for rule in _RULES.get(field.name, ()):
            if not rule.holds(value):
                shown = f"; not {repr(value)[:80]}" if isinstance(value, (str, int)) else ""
                raise rule.error(f"{rule.words}{shown}")


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
