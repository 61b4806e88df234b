"""A worker's stream to its coordinator, which is reopened whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from superdl.lambda_prefetch.worker.slots import RequestFailedError
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.cancelling import CallingThreads
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from superdl.super_wire.errors import (
    ConfigError,
    CoordinatorError,
    CoordinatorTrustError,
    StoreError,
    SuperError,
    error_from_name,
)
from superdl.super_wire.protocol import (
    ERROR_METADATA_KEY,
    PROTOCOL_VERSION,
    TOKEN_METADATA_KEY,
    host_and_port,
    installed_version,
)
from superdl.super_wire.store import is_bucket, open_store

if TYPE_CHECKING:
    from superdl.lambda_prefetch.worker.slots import Slots, WorkerSettings

_log = logging.getLogger(__name__)

# Heartbeats detect a vanished peer, and keep a NAT from dropping the connection.
_HEARTBEAT_S, _SILENCE_S = 5.0, 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_MAX_MESSAGE_BYTES = 8 * 2**20
_MAX_ANSWER_BYTES = 3 * 2**20  # below the coordinator's limit
_MAX_MESSAGE = 2000
_STORE_S = 5.0  # a coordinator waits longer for a hello
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
# Errors that a retry cannot fix.
_FATAL = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}


class _BrokenError(Exception):
    """The stream broke; reconnecting may help."""


async def serve(
    settings: WorkerSettings,
    slots: Slots,
    stop: asyncio.Event,
    start_error: str,
    connected: asyncio.Event,
) -> int:
    """Serve requests until ``stop`` is set or the coordinator sends a goodbye.

    Returns the exit code in the goodbye, or 0. ``start_error`` is the reason that no slot started, which is
    reported to the coordinator. ``connected`` is set while the stream is up. Raises CoordinatorError if the
    coordinator refuses this worker or has been unreachable for ``linger_s`` seconds.
    """
    loop = asyncio.get_running_loop()
    last_message_s, pause_s, is_logged, is_first = loop.time(), _FIRST_PAUSE_S, False, True
    while not stop.is_set():
        call = _Call(settings, slots, stop, start_error, connected)
        try:
            await call.run(is_first=is_first)
        except _BrokenError as error:
            if call.last_message_s is not None:
                # The stream had been up, so restart the backoff, and log this loss.
                last_message_s, pause_s, is_logged = call.last_message_s, _FIRST_PAUSE_S, False
            silent_s = loop.time() - last_message_s
            if silent_s > settings.linger_s:
                silence = f"the coordinator at {settings.coordinator} has not responded for {silent_s:.0f} s"
                raise CoordinatorError(f"{silence}: {error}") from None
            if not is_logged:
                _log.warning("waiting for the coordinator at %s: %s", settings.coordinator, error)
                is_logged = True
        is_first = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await stop.wait()
        if call.exit_code is not None:
            return call.exit_code
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return 0


@dataclass(slots=True)
class _Call:
    """A stream to the coordinator, from its hello message until it closes."""

    settings: WorkerSettings
    slots: Slots
    stop: asyncio.Event
    start_error: str
    connected: asyncio.Event
    outgoing: asyncio.Queue[pb.FromWorker | None] = field(default_factory=asyncio.Queue)
    running: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    is_silent: bool = False
    exit_code: int | None = None  # in the coordinator's goodbye
    last_message_s: float | None = None  # loop time

    async def run(self, *, is_first: bool) -> None:
        """Serve until this worker is stopped and its current requests have finished."""
        credentials = self.settings.credentials
        try:
            token, channel = credentials.current_token(), _channel(self.settings)
        except ConfigError as error:
            if is_first:
                raise
            raise _BrokenError(str(error)) from error  # a file may be incomplete
        async with channel:
            metadata = ((TOKEN_METADATA_KEY, f"Bearer {token}"),) if token else ()
            stream = CoordinatorStub(channel).Work(metadata=metadata)
            jobs = self._write(stream), self._send_heartbeats(stream), self._drain()
            background = [asyncio.create_task(job) for job in jobs]
            try:
                await self._read(stream)
            except grpc.aio.AioRpcError as error:
                raise _refusal(error) or _BrokenError(error.details() or error.code().name) from None
            except asyncio.CancelledError:
                if self.is_silent:
                    raise _BrokenError(f"no message for {_SILENCE_S:g} s") from None
                raise
            finally:
                self.connected.clear()
                # Let running requests finish, because their records also serve a repeated request.
                stream.cancel()
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)

    async def _read(self, stream: Any) -> None:
        async for message in stream:
            if self.last_message_s is None:
                self.connected.set()
                _log.info("connected to %s with %d slots", self.settings.coordinator, self.slots.count)
            self.last_message_s = asyncio.get_running_loop().time()
            if message.HasField("request"):
                call = message.request.call
                self.running[call] = task = asyncio.create_task(self._run_request(message.request))
                task.add_done_callback(partial(self.running.pop, call))
            elif message.HasField("cancel") and message.cancel in self.running:
                self.running[message.cancel].cancel()
            elif message.HasField("goodbye"):
                self.exit_code = message.goodbye.exit_code
                return
        if self.stop.is_set():
            return
        raise _BrokenError("the coordinator closed the stream")

    async def _write(self, stream: Any) -> None:
        settings = self.settings
        hello = pb.WorkerHello(
            protocol_version=PROTOCOL_VERSION,
            version=installed_version(),
            name=settings.name,
            fingerprint=self.slots.fingerprint,
            slots=self.slots.count,
            trouble=self.start_error[:_MAX_MESSAGE],
            store_only=settings.store_only,
            store=settings.store,
            store_id=await _store_id(settings.store),
        )
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # reading fails, too
            await stream.write(pb.FromWorker(hello=hello))
            while (message := await self.outgoing.get()) is not None:
                await stream.write(message)
            await stream.done_writing()

    async def _send_heartbeats(self, stream: Any) -> None:
        """Send heartbeats. End the stream if no messages arrive."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while loop.time() - (self.last_message_s or began_s) < _SILENCE_S:
            await asyncio.sleep(_HEARTBEAT_S)
            slots = self.slots
            heartbeat = pb.Heartbeat(
                cpu_s=slots.cpu_s,
                crashed=slots.ended["crashed"],
                timed_out=slots.ended["timed_out"],
                restarted=slots.restarts,
            )
            self.outgoing.put_nowait(pb.FromWorker(heartbeat=heartbeat))
        self.is_silent = True
        stream.cancel()

    async def _drain(self) -> None:
        """Wait for ``stop``, then finish the running requests and end the stream."""
        await self.stop.wait()
        self.outgoing.put_nowait(pb.FromWorker(draining=pb.Draining()))
        if self.running:
            await asyncio.wait(self.running.values(), timeout=self.settings.grace_s)
        self.outgoing.put_nowait(None)

    async def _run_request(self, request: pb.WorkerRequest) -> None:
        answer = pb.WorkerAnswer(call=request.call)
        try:
            answer.result = await self.slots.run(request.request, request.timeout_s)
        except RequestFailedError as error:
            answer.failure.CopyFrom(
                pb.WorkerFailure(kind=error.kind, message=str(error)[:_MAX_MESSAGE], ran_s=error.ran_s)
            )
        if answer.ByteSize() > _MAX_ANSWER_BYTES:
            message = f"the result of {answer.ByteSize():,} bytes is too large"
            answer.failure.CopyFrom(pb.WorkerFailure(kind="too_large", message=message))
        self.outgoing.put_nowait(pb.FromWorker(answer=answer))


async def _store_id(address: str) -> str:
    """Return the id of a store directory, or an empty string for a bucket or an inaccessible store."""
    if not address or is_bucket(address):
        return ""
    threads, reason = CallingThreads(1, "super-store"), f"no reply within {_STORE_S:g} s"
    try:
        async with asyncio.timeout(_STORE_S):  # a dead network mount may hang forever
            return (await threads.run(partial(open_store, address, create=False, read_only=True))).id
    except StoreError as error:
        reason = str(error)
    except TimeoutError:
        pass
    _log.warning("cannot access the store %s: %s", address, reason)
    return ""


def _channel(settings: WorkerSettings) -> grpc.aio.Channel:
    credentials, host = settings.credentials, host_and_port(settings.coordinator)[0]
    if not credentials.encrypts(host):
        return grpc.aio.insecure_channel(settings.coordinator, options=_OPTIONS)
    named = (("grpc.ssl_target_name_override", credentials.name),) if credentials.name else ()
    return grpc.aio.secure_channel(
        settings.coordinator,
        grpc.ssl_channel_credentials(*credentials.for_grpc()),
        options=(*_OPTIONS, *named),
    )


def _refusal(error: grpc.aio.AioRpcError) -> SuperError | None:
    """Return the coordinator's error, or ``None`` if a retry may succeed."""
    if error.code() not in _FATAL:
        return None
    message = f"the coordinator refused this worker: {error.details()}"
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return CoordinatorTrustError(message)
    trailing: Any = error.trailing_metadata() or ()  # pairs, unlike in the stubs
    return error_from_name(str(dict(trailing).get(ERROR_METADATA_KEY, "")), message)
