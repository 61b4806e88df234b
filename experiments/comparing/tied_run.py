"""One run of a comparison: ``superdl run SPEC`` in a process that ends with the one that started it.

The run's page is left to that one, since drawing it takes as much CPU as a small run.

``python -P -m superdl.experiments.comparing.tied_run PARENT DESCRIPTOR SPEC`` writes the exit code as one
byte to the descriptor as soon as the run has ended, and then waits for what the run started, so that whoever
reaps this process has the CPU time of all. Starting it is `experiments.comparing.processes`'s.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(arguments: list[str]) -> int:
    """Run the spec and return the exit code of ``superdl run``."""
    parent, descriptor, spec = int(arguments[0]), int(arguments[1]), arguments[2]
    # Where a shell started all of it in the background, SIGINT came ignored, and nothing could end the run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _tie_to(parent)
    from superdl.main import main as superdl

    code = 1
    try:
        code = superdl(["run", "--no-page", spec])
    finally:
        os.write(descriptor, bytes([code]))
        os.close(descriptor)
        embedded = sys.modules.get("superdl.sampler.embedded.embedded")  # absent where the loader needs none
        if embedded is not None:
            embedded.release_all()
    return code


def _tie_to(parent: int) -> None:
    """Have Linux interrupt this process when its parent goes, so that the run still writes its report."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    if os.getppid() != parent:  # it died before the call above
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
