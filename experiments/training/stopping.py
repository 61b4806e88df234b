"""SIGTERM, which clusters send before they take a machine away: training stops after the step that goes on.

What is kept then is left to `experiments.training.loop`. A second signal ends the process at once.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from types import FrameType

    from superdl.experiments.ranks import Ranks

__all__ = ["StopRequest", "Terminated"]


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM)."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("the process was asked to end (SIGTERM)")


class StopRequest:
    """Learns of SIGTERM, and agrees with the other ranks on the step after which all of them stop.

    Use as a context manager, around the whole run; outside of training the signal ends it at once.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Make one that has not been asked yet."""
        self._several = ranks.several
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
