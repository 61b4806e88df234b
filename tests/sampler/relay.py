"""A relay between samplers and a coordinator that counts how many connections are open at once."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading


class Relay:
    """Forwards bytes between a loopback port of its own and ``target`` (``host:port``), in one thread.

    Attributes:
        open: connections now.
        most_open: the most there were at any moment.
        opened: all there ever were.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._wakeup, self._waker = socket.socketpair()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.open = self.most_open = self.opened = 0
        self._changed = threading.Condition()
        self._partner: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        for readable in (self._listener, self._wakeup):
            self._selector.register(readable, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._waker.close()
        self._thread.join(10)

    def wait_for(self, condition) -> None:
        """Until ``condition()`` holds, tried after each connection that comes or goes."""
        with self._changed:
            assert self._changed.wait_for(condition, 20), (self.opened, self.open)

    def _run(self) -> None:
        while True:
            ready = [key.fileobj for key, _ in self._selector.select()]
            # What ended before the newcomer came is dropped before the newcomer is counted.
            for one in [*self._partner]:
                self._pump(one)
            if self._listener in ready:
                self._welcome()
            if self._wakeup in ready:
                break
        for one in [*self._partner, self._listener, self._wakeup]:
            one.close()

    def _welcome(self) -> None:
        front, _ = self._listener.accept()
        back = socket.create_connection(self._target)
        self._partner |= {front: back, back: front}
        for one in (front, back):
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
        with self._changed:
            self.open += 1
            self.opened += 1
            self.most_open = max(self.most_open, self.open)
            self._changed.notify_all()

    def _pump(self, one: socket.socket) -> None:
        if one not in self._partner:
            return
        with contextlib.suppress(BlockingIOError):
            while data := self._received(one):
                other = self._partner[one]
                other.setblocking(True)
                with contextlib.suppress(OSError):
                    other.sendall(data)
                other.setblocking(False)
            self._drop(one)

    @staticmethod
    def _received(one: socket.socket) -> bytes:
        try:
            return one.recv(1 << 20)
        except ConnectionResetError:
            return b""

    def _drop(self, one: socket.socket) -> None:
        other = self._partner.pop(one)
        del self._partner[other]
        for end in (one, other):
            self._selector.unregister(end)
            end.close()
        with self._changed:
            self.open -= 1
            self._changed.notify_all()
