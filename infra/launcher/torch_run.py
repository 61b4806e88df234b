"""``python torch_run.py ...``: ``torch.distributed.run``, with the exit code of the rank that failed first.

torchrun itself exits with 1 whatever the script's code was. It is a program of its own, started by path, so
that no launcher imports torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_SIGNALS_FROM = 128


def main(arguments: Sequence[str]) -> int:
    """Run; the exit code."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as run

    try:
        run(list(arguments))
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        _, failure = error.get_first_failure()
        return int(failure.exitcode if failure.exitcode > 0 else _SIGNALS_FROM - failure.exitcode)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
