"""Run functions for a coordinator, like superdl worker, but without importing the other commands.

``python -P -m superdl.lambda_prefetch.worker --standby PLACE`` imports its modules, then reads its arguments
from a line on standard input. PLACE only identifies the process in process listings.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.worker.command import add_arguments, run, standby
from superdl.super_wire.display import shown_lines
from superdl.super_wire.errors import SuperError
from superdl.super_wire.forked_process import set_process_name

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run a worker with these arguments and return its exit code."""
    set_process_name("superdl-worker")
    parser = argparse.ArgumentParser(prog="python -m superdl.lambda_prefetch.worker", description=__doc__)
    add_arguments(parser)
    template = None
    try:
        if argv[:1] == ["--standby"]:
            argv, template = standby()
            if not argv:
                return 0
        return run(parser.parse_args(argv), template)
    except SuperError as error:
        sys.stderr.write(shown_lines(f"superdl worker: {error}\n"))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
