"""The worker processes of a DataLoader: how they take SIGTERM, and that none of them is left.

Who asks for the end sends SIGTERM to a whole process group (torchrun, Slurm, systemd). The run then has to
take its last step and to keep a checkpoint, as `experiments.training.stopping` has it, and needs its workers.
"""

from __future__ import annotations

import signal
from typing import Any

__all__ = ["end_workers", "leave_sigterm_to_the_run"]


def leave_sigterm_to_the_run(worker: int) -> None:  # noqa: ARG001  # as torch calls it
    """Ignore SIGTERM in a worker, as its ``worker_init_fn``; it ends when its loader is closed or gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def end_workers(batches: Any) -> None:
    """End a DataLoader's workers at once; one that hangs, and would only be sent SIGTERM, is killed."""
    # What torch does itself when the last reference goes; it has no public name for it.
    iterator = getattr(batches, "_iterator", None)
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is None:
        return
    shut_down()
    for process in getattr(iterator, "_workers", ()):
        if process.is_alive():
            process.kill()
            process.join()
