"""The ranks of a run. Their connections keep an embedded coordinator running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

from superdl.coordinator.embedded.cache_server import start_on_socket
from superdl.super_wire.errors import EmbeddedError
from superdl.super_wire.protocol import PROTOCOL_VERSION
from superdl.super_wire.worker_process import WorkerProcess

if TYPE_CHECKING:
    import socket
    import subprocess
    from collections.abc import Callable, Iterator

    from superdl.super_wire.run_directory import RunDirectory

_LOCK_PAUSE_S = 0.05
_LOCK_WAIT_S = 5.0


class Ranks:
    """The ranks that connect to ``listener`` and keep a coordinator running.

    Each rank receives a line of JSON once the coordinator is serving or has failed. The coordinator and
    the cache exit after a grace period without any ranks.
    """

    def __init__(self, directory: RunDirectory, listener: socket.socket, grace_s: float) -> None:
        listener.setblocking(False)
        self._directory, self._listener, self._grace_s = directory, listener, grace_s
        self._identity = directory.identity()
        self._ranks: set[socket.socket] = set()
        self.is_serving = False
        self._cache: subprocess.Popen[bytes] | None = None
        self.worker: WorkerProcess | None = None
        self._lock, self._is_locked = contextlib.ExitStack(), False
        self._idle: asyncio.TimerHandle | None = None
        self._stop: Callable[[], None] = lambda: None

    def start_cache(self, cache_bytes: int) -> None:
        """Start the cache server. No other thread of this process may be running Python yet."""
        self._cache = start_on_socket(self._directory.cache_socket, cache_bytes)

    def start_worker(self) -> None:
        """Fork a worker that inherits the modules loaded so far. No other threads may be running yet."""
        with contextlib.suppress(OSError):  # the executor retries and reports the error
            self.worker = WorkerProcess(str(self._directory.path), forks=True)

    def begin(self, stop: Callable[[], None]) -> None:
        """Accept ranks in the running event loop. Calls ``stop`` after the last rank has left."""
        loop, self._stop = asyncio.get_running_loop(), stop
        loop.add_reader(self._listener, self._accept_all)
        for rank in self._ranks:  # a restarted coordinator has a new loop
            loop.add_reader(rank, self._read, rank)
        self._wait_for_ranks(self._grace_s)
        if self._cache is not None:
            loop.add_reader(os.pidfd_open(self._cache.pid), self._cache_died)

    def serving(self) -> None:
        """Notify the ranks that the coordinator is serving."""
        self.is_serving = True
        for rank in list(self._ranks):
            self._send_ready(rank)

    def close(self, failure: str = "") -> None:
        """Stop the cache, report a failure to the ranks, and remove the run's directory."""
        # A rank that connects now must wait for the start lock, and then start another coordinator.
        if self._is_current() and not self._is_locked:
            with contextlib.suppress(EmbeddedError):
                self._take_lock(_LOCK_WAIT_S)
        # Include ranks that have just connected.
        self._ranks.update(self._connections())
        for rank in self._ranks if failure else ():
            _send(rank, {"error": failure})
        if self._cache is not None:
            self._cache.kill()
            self._cache.wait()
        if self._is_current() and self._is_locked:
            self._directory.remove()
        self._lock.close()

    def _is_current(self) -> bool:
        """Return whether the directory still exists and has not been replaced."""
        return self._directory.identity() == self._identity

    def _take_lock(self, wait_s: float) -> None:
        self._lock.enter_context(self._directory.locked_for_start(wait_s))
        self._is_locked = True

    def _connections(self) -> Iterator[socket.socket]:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError, OSError):
            while True:
                yield self._listener.accept()[0]

    def _accept_all(self) -> None:
        for rank in self._connections():
            rank.setblocking(False)
            self._ranks.add(rank)
            asyncio.get_running_loop().add_reader(rank, self._read, rank)
            if self._idle is not None:
                self._idle.cancel()
            if self.is_serving:
                self._send_ready(rank)

    def _read(self, rank: socket.socket) -> None:
        try:
            if rank.recv(4096):  # empty once the rank has ended
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._drop(rank)

    def _drop(self, rank: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(rank)
        rank.close()
        self._ranks.discard(rank)
        if not self._ranks:
            self._wait_for_ranks(self._grace_s)

    def _send_ready(self, rank: socket.socket) -> None:
        if not _send(rank, {"protocol_version": PROTOCOL_VERSION, "coordinator": os.getpid()}):
            self._drop(rank)

    def _wait_for_ranks(self, wait_s: float) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(wait_s, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self._is_current():
            try:
                self._take_lock(0.0)
            except EmbeddedError:  # a rank is connecting
                self._wait_for_ranks(_LOCK_PAUSE_S)
                return
            self._accept_all()  # a rank may have connected before the lock was taken
            if self._ranks:
                self._lock.close()
                self._is_locked = False
                return
        asyncio.get_running_loop().remove_reader(self._listener)
        self._stop()

    def _cache_died(self) -> None:
        code = self._cache.wait() if self._cache is not None else 0
        reason = f"the cache server ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
        sys.stderr.write(f"superdl coordinator: {reason}\n")
        if not self.is_serving:
            for rank in self._ranks:
                _send(rank, {"error": f"the embedded coordinator did not start: {reason}"})
        # The ranks restart both.
        os._exit(1)


def _send(rank: socket.socket, message: dict[str, object]) -> bool:
    """Send a line of JSON. Return ``False`` if the rank is gone or is not reading."""
    try:
        rank.send(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True
