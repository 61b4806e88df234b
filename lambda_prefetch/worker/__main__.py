"""Run functions for a coordinator, like superdl worker, but without importing the other commands."""

from __future__ import annotations

import argparse
import sys

from superdl.lambda_prefetch.worker.command import add_arguments, run
from superdl.super_wire.errors import SuperError
from superdl.super_wire.redaction import shown_lines

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m superdl.lambda_prefetch.worker", description=__doc__)
    add_arguments(parser)
    try:
        sys.exit(run(parser.parse_args()))
    except SuperError as error:
        sys.stderr.write(shown_lines(f"superdl worker: {error}\n"))
        sys.exit(1)
