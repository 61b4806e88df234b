"""How the ranks of a run end together: after a failure of one of them, or when a cluster asks for it.

The rank that fails first puts its reason into torch's store. A thread of each other rank looks at the store,
over a connection of its own, and ends a process that waits for the failed one in vain. On SIGTERM, which
clusters send before they take a machine away, all ranks stop after the same step; what is kept then is left
to `experiments.training.loop`. Who the ranks are is left to `experiments.training.ranks`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # they are there

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["FailureWatch", "StopRequest", "Terminated"]

_KEY = "failure"
_LOOK_EVERY_S = 1.0
_GRACE_S = 10.0
"""For a rank to fail by itself, since its collective has broken, and to write its report."""
_STORE_TIMEOUT = timedelta(seconds=20)
_EXIT_CODE = 1


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
        with contextlib.suppress(RuntimeError):
            return self._reason()
        return None

    def _reason(self) -> str | None:
        if self._store is None or not self._store.check([_KEY]):
            return None
        return bytes(self._store.get(_KEY)).decode()

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
        os._exit(_EXIT_CODE)  # the main thread waits in a collective, which nothing interrupts

    def _wait_for_a_failure(self) -> str | None:
        """What another rank said; None once this rank has ended its part."""
        while not self._stopped.wait(_LOOK_EVERY_S):
            try:
                reason = self._reason()
            except RuntimeError as error:
                return f"the store of the ranks has gone ({error})"
            if reason is not None:
                return reason
        return None


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM)."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("the process was asked to end (SIGTERM)")


class StopRequest:
    """Learns of SIGTERM, and agrees with the other ranks on the step after which all of them stop.

    Use as a context manager, around the whole run; outside of training the signal ends it at once, and a
    second signal always does.
    """

    def __init__(self, *, several: bool = False) -> None:
        """Make one that has not been asked yet, of a rank that is alone or one of ``several``."""
        self._several = several
        self._training = False
        self._asked = False
        self._flag = torch.zeros(1)
        self._pending: Any = None
        self._before: Any = None
        self._child_before: Any = None

    def __enter__(self) -> Self:
        """Take the signal over, in the main thread; elsewhere signals cannot be had."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Give it back."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        if self._child_before is not None:
            signal.signal(signal.SIGCHLD, self._child_before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as Python calls it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # who asks twice means it
        if not self._training:
            raise Terminated
        self._asked = True
        # A worker that died of the same signal is not to raise, by torch's handler, into the last step or the
        # writing of its checkpoint; a batch that can no longer come is still told when it is waited for.
        if self._child_before is None:
            self._child_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def begin(self) -> None:
        """Training begins."""
        self._training = True

    def end(self) -> None:
        """Training has ended: the last question to the other ranks is answered."""
        self._training = False
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def due(self) -> bool:
        """Whether to stop now; asked after each step, and the same on all ranks.

        With several ranks it is the answer to what was asked a step before, which has come in meanwhile.
        """
        if not self._several:
            return self._asked
        if self._pending is not None:
            self._pending.wait()
            if self._flag.item() > 0:
                self._pending = None
                return True
        self._flag.fill_(float(self._asked))
        self._pending = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, async_op=True)
        return False
