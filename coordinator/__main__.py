"""Run a coordinator: ``python -m superdl.coordinator`` or ``superdl coordinator``.

The exit code is 0 after an orderly shutdown, or that of the run if the coordinator ends with it. It is 2
for invalid settings and 1 for other failures, whose reason is the last line on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING

from superdl.coordinator.server.log_handler import LINE_FORMATS, RepeatedLines
from superdl.coordinator.server.settings import add_arguments, load_settings
from superdl.super_wire.display import keep_secrets_out_of_logs, shown_lines
from superdl.super_wire.errors import ConfigError, SuperError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.coordinator.server.server import Holders

_log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> int:
    """Serve with parsed options, and return the exit code."""
    try:
        return serve_with(arguments)
    except SuperError as error:
        sys.stderr.write(shown_lines(f"superdl coordinator: {error}\n"))
        return 2 if isinstance(error, ConfigError) else 1


def serve_with(arguments: argparse.Namespace, holders: Holders | None = None) -> int:
    """Serve, until the ``holders`` are gone if there are any. Return the exit code."""
    # grpc is slow to import, and --help does not need it.
    from superdl.coordinator.server.server import serve
    from superdl.coordinator.server.upkeep import DecoderReplacedError

    settings = load_settings(vars(arguments), os.environ, arguments.config)
    handler = RepeatedLines(sys.stderr)
    handler.setFormatter(LINE_FORMATS[settings.log_format]())
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    keep_secrets_out_of_logs()
    decoder = ""
    while True:
        try:
            return asyncio.run(serve(settings, holders, decoder))
        except DecoderReplacedError as error:
            _log.warning("restarting: %s", error)
            # Records of the previous decoder are useless, so start over.
            decoder = error.decoder


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m superdl.coordinator", description="Run a SUPER coordinator."
    )
    add_arguments(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and serve."""
    return run(parsed(argv))


if __name__ == "__main__":
    sys.exit(main())
