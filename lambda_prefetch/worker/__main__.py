"""Run functions for a coordinator, like superdl worker, but without importing the other commands.

``python -P -m superdl.lambda_prefetch.worker --standby PLACE`` imports its modules, then reads its arguments
from a line of standard input. PLACE is only shown by tools that list processes.
"""

from __future__ import annotations

import argparse
import sys

from superdl.lambda_prefetch.worker.command import add_arguments, run, standby
from superdl.super_wire.errors import SuperError
from superdl.super_wire.redaction import shown_lines

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m superdl.lambda_prefetch.worker", description=__doc__)
    add_arguments(parser)
    try:
        arguments, template = standby() if sys.argv[1:2] == ["--standby"] else (sys.argv[1:], None)
        sys.exit(run(parser.parse_args(arguments), template))
    except SuperError as error:
        sys.stderr.write(shown_lines(f"superdl worker: {error}\n"))
        sys.exit(1)
