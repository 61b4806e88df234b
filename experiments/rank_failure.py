"""Lets the rank that fails first tell the others why, and ends those that wait for it in vain.

The reason goes into torch's store, over a connection of its own, which a thread looks at. Who the ranks are
is left to `experiments.ranks`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # they are there

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FailureWatch"]

_KEY = "failure"
_LOOK_EVERY_S = 1.0
_GRACE_S = 10.0
"""For a rank to fail by itself, since its collective has broken, and to write its report."""
_STORE_TIMEOUT = timedelta(seconds=20)
EXIT_CODE = 1


class FailureWatch:
    """A thread that learns of another rank's failure."""

    def __init__(self, rank: int) -> None:
        """Watch for ``rank``; it connects when it is started."""
        self._rank = rank
        self._stopped = threading.Event()
        self._writing = threading.Event()
        self._store: Store | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch; the group has been made, so its store is there."""
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=_STORE_TIMEOUT,
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"superdl/{attempt}", store)
        self._thread = threading.Thread(target=self._run, name="superdl-ranks", daemon=True)
        self._thread.start()

    def tell(self, reason: str) -> str | None:
        """Say that this rank failed; None if it is the first, else what the first one said."""
        if self._store is None:
            return None
        mine = f"rank {self._rank} failed: {reason}"
        try:
            first = bytes(self._store.compare_set(_KEY, "", mine)).decode()
        except RuntimeError:
            return None  # the store has gone with rank 0: then our own reason is all there is
        return None if first == mine else first

    def told(self) -> str | None:
        """What the first rank that failed said; None if none has, or nobody can be asked."""
        try:
            if self._store is None or not self._store.check([_KEY]):
                return None
            return bytes(self._store.get(_KEY)).decode()
        except RuntimeError:
            return None

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """What is within waits for no rank and ends by itself, and is not cut off by another's failure."""
        self._writing.set()
        try:
            yield
        finally:
            self._writing.clear()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        reason = self._wait_for_a_failure()
        if reason is None or self._stopped.wait(_GRACE_S):
            return
        while self._writing.is_set():
            if self._stopped.wait(_LOOK_EVERY_S):
                return
            if not self._writing.is_set() and self._stopped.wait(_GRACE_S):
                return
        sys.stderr.write(f"superdl: rank {self._rank} ends, since {reason}\n")
        sys.stderr.flush()
        os._exit(EXIT_CODE)  # the main thread waits in a collective, which nothing interrupts

    def _wait_for_a_failure(self) -> str | None:
        """What another rank said; None once this rank has ended its part."""
        while not self._stopped.wait(_LOOK_EVERY_S):
            if self._store is None:
                return None
            try:
                if self._store.check([_KEY]):
                    return bytes(self._store.get(_KEY)).decode()
            except RuntimeError as error:
                return f"the store of the ranks has gone ({error})"
        return None
