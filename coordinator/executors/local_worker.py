"""The ``local`` executor, which starts its own worker and connects it through a private Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import glob
import logging
import os
import platform
import shutil
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import grpc

from superdl.coordinator.executors.base import ExecutorError, setting
from superdl.coordinator.executors.connected_workers import Workers
from superdl.coordinator.executors.workers import WorkersExecutor, WorkServicer
from superdl.super_wire import coordinator_pb2_grpc as pb_grpc
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.run_directory import temporary_directory
from superdl.super_wire.worker_process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from superdl.coordinator.executors.base import ExecutorContext

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_LASTED_S = 10.0
_CLOSE_TIMEOUT_S = 5.0
_LEAST_SHARD_BYTES = 2**24  # a block
_MOST_SHARD_BYTES = 2**36
_MAX_MESSAGE_BYTES = 8 * 2**20
_MAX_DIRECTORY_BYTES = 80  # a socket path may be at most 107 bytes long


@dataclass(frozen=True)
class LocalSettings:
    """Settings for the local executor."""

    slots: int = setting(
        1, "concurrent requests of the local executor, each in its own process (1)", low=1, high=1024
    )
    worker_nice: int = setting(0, "niceness of the slots; 19 is the lowest priority (0)", low=0, high=19)
    start_timeout_s: int = setting(300, "time limit for starting slots in seconds (300)", low=1, high=86400)
    shard_cache_bytes: int = setting(
        0,
        "disk space for shards while the coordinator runs (a tenth of the free space, at most 64 GiB)",
        high=2**60,
    )


class LocalExecutor(WorkersExecutor):
    """An executor that starts its own worker and runs functions in it."""

    name = "local"
    remote = False
    trial_settings: ClassVar = {"slots": 1}

    def __init__(self, settings: LocalSettings, context: ExecutorContext) -> None:
        module, _, attribute = context.function.partition(":")
        if not module or not attribute:
            raise ConfigError(f"a function must be given as module:attribute, not {context.function!r}")
        self._workers = Workers(absence="the worker is starting")
        self._settings, self._context = settings, context
        self._environment = dict(context.environment)
        self._scratch: Scratch | None = None
        self._directory = ""
        self._server: grpc.aio.Server | None = None
        self._process: WorkerProcess | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closing, self._ended = asyncio.Event(), asyncio.Event()
        self._failure = ""

    async def start(self) -> None:
        """Start the worker and wait for its first slot. Raises ``ExecutorError`` if none is ready in time."""
        await asyncio.to_thread(self._make_scratch)
        self._directory = _private_directory(self._context.sockets)
        await self._listen()
        self._keeper = asyncio.create_task(self._keep(), name="local worker")
        if not await self._has_first_slot():
            timeout_s = self._settings.start_timeout_s
            reason = self._failure or f"no slot was ready after {timeout_s} s (SUPER_START_TIMEOUT_S)"
            await self.close()
            raise ExecutorError(reason)

    async def _has_first_slot(self) -> bool:
        """Wait for the worker's first slot. Returns ``False`` if the worker exits or time runs out."""
        waiting = [asyncio.create_task(until) for until in (self._workers.first(), self._ended.wait())]
        try:
            timeout_s = self._settings.start_timeout_s
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return waiting[0].done()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def close(self) -> None:
        """Stop the worker and its slots, killing them if they take too long."""
        self._closing.set()
        if self._keeper is not None:
            if self._process is not None:
                self._process.terminate()
            _, late = await asyncio.wait([self._keeper], timeout=_CLOSE_TIMEOUT_S)
            if late and self._process is not None:
                self._process.kill()
            await self._keeper
        await super().close()
        if self._server is not None:
            await self._server.stop(None)
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.remove)

    def _make_scratch(self) -> None:
        if self._context.scratch is None:
            return
        try:
            self._scratch = Scratch(self._context.scratch)
            max_bytes = self._settings.shard_cache_bytes or self._scratch.max_bytes
        except OSError as error:
            _log.info("cannot cache shards in %s: %s", self._context.scratch, error)
            return
        self.keeps_shards = max_bytes >= _LEAST_SHARD_BYTES
        self._environment |= {"SUPER_SHARDS": self._scratch.path, "SUPER_SHARDS_BYTES": str(max_bytes)}

    async def _listen(self) -> None:
        options = [(f"grpc.max_{way}_message_length", _MAX_MESSAGE_BYTES) for way in ("receive", "send")]
        self._server = grpc.aio.server(options=options)
        # Insecure, because only this user can reach the socket's directory.
        pb_grpc.add_CoordinatorServicer_to_server(WorkServicer({True: self._workers}), self._server)
        self._server.add_insecure_port(self._address)
        await self._server.start()

    @property
    def _address(self) -> str:
        return f"unix:{self._directory}/socket"

    async def _keep(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            began_s = time.monotonic()
            try:
                code = await self._run_worker()
                failure = f"its worker ended with {'signal' if code < 0 else 'exit code'} {abs(code)}"
            except OSError as error:
                failure = f"cannot start a worker process: {error}"
            if self._closing.is_set():
                return
            self._failure = self._workers.refusal or failure
            _log.warning("replacing the local worker: %s", self._failure)
            self._ended.set()
            # Restart a worker that ran for a while without a long pause.
            has_lasted = time.monotonic() - began_s > _LASTED_S
            pause_s = _FIRST_PAUSE_S if has_lasted else min(2 * pause_s, _LONGEST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()

    async def _run_worker(self) -> int:
        settings, early = self._settings, self._context.worker
        arguments = ["--coordinator", self._address, "--name", "local"]
        arguments += ["--slots", str(settings.slots), "--nice", str(settings.worker_nice)]
        # Without lingering, no worker outlives its coordinator.
        arguments += ["--linger", "0", "--grace", "0", "--function", self._context.function]
        process = early if early is not None and early.is_waiting else WorkerProcess(self._directory)
        self._process = process
        # In a thread, because a large environment may fill the pipe.
        await asyncio.to_thread(process.begin, arguments, self._environment)
        if self._closing.is_set():  # close() found no process to stop
            process.kill()
        try:
            return await process.ended()
        except OSError:
            process.kill()
            raise


def _private_directory(beside: str) -> str:
    # Preferably in the coordinator's directory, because it is removed with it.
    parents = (beside, temporary_directory(), "/tmp")  # noqa: S108  # mkdtemp's directories are private
    fitting = [parent for parent in parents if 0 < len(os.fsencode(parent)) <= _MAX_DIRECTORY_BYTES]
    return tempfile.mkdtemp(prefix="worker-", dir=fitting[0])


class Scratch:
    """A directory in ``parent`` for shards, locked until the process ends.

    Raises ``OSError`` if it cannot be created.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent, wait=True):  # otherwise, an unlocked new directory would seem abandoned
            host = f"{platform.node()}-"  # locks of other hosts may be invisible here
            # Remove the directories of killed coordinators on this host.
            for other in parent.glob(f"{glob.escape(host)}*"):
                with contextlib.suppress(OSError), _locked(other):
                    shutil.rmtree(other, ignore_errors=True)
            self.path = tempfile.mkdtemp(prefix=host, dir=parent)
            self._lock = contextlib.ExitStack()
            self._lock.enter_context(_locked(self.path))

    @property
    def max_bytes(self) -> int:
        """A tenth of the free disk space, up to a limit, in bytes."""
        # A network file system may report no limit.
        return min(shutil.disk_usage(self.path).free // 10, _MOST_SHARD_BYTES)

    def remove(self) -> None:
        """Remove the directory and its contents."""
        # Hold the lock until the end, or another start would remove the directory, too.
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


@contextlib.contextmanager
def _locked(directory: str | Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a directory's lock. If another process has it, ``wait`` or raise ``OSError``."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)
