"""``python -m superdl.coordinator``: one coordinator process; ``superdl coordinator`` is the same.

Exit code 0 after a drained end, 2 for wrong settings, 1 for any other failure; the reason is the last line on
stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from dataclasses import fields
from typing import TYPE_CHECKING

from superdl.coordinator.server.repeated_lines import RepeatedLines
from superdl.coordinator.server.settings import Settings, load_settings
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.executors import EXECUTORS
from superdl.super_wire.redaction import keep_secrets_out_of_logs, shown_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["add_arguments", "main", "run"]

_TYPES = {"int": int, "float": float, "str": str}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the coordinator's options to a parser; those of executors as their settings state them."""
    parser.add_argument("--config", help="TOML file with settings of the same names")
    parser.add_argument("--listen", help="host:port or unix:/path (127.0.0.1:50051)")
    parser.add_argument("--cache", help="redis://host:port[/db] or unix:///path (redis://127.0.0.1:6379)")
    parser.add_argument(
        "--executor",
        help=f"how functions run: {', '.join(EXECUTORS)}, or several as local,lambda (local)",
    )
    parser.add_argument(
        "--function", help="module:attribute that local workers run (superdl.lambda_prefetch.handler:handler)"
    )
    parser.add_argument(
        "--cache-bytes", help="budget for records, such as 4gb (the server's maxmemory less headroom)"
    )
    parser.add_argument(
        "--lookahead-batches", type=int, help="batches to be ready ahead of a rank, at most (64)"
    )
    parser.add_argument("--request-samples", type=int, help="samples per function invocation, at most (64)")
    parser.add_argument(
        "--request-timeout-s", type=float, help="seconds for a function to begin a sample (60)"
    )
    parser.add_argument(
        "--catalog-max-age-s", type=float, help="a new run lists a source again after this (300)"
    )
    parser.add_argument("--catalog-max-samples", type=int, help="samples that a source may have (50,000,000)")
    parser.add_argument(
        "--lease-s", type=float, help="a rank that is silent for so long is not looked ahead for (15)"
    )
    parser.add_argument("--function-memory-mb", type=int, help="memory of a function, to account for (1769)")
    parser.add_argument("--prices", metavar="FILE", help="TOML price table, in place of the built-in one")
    parser.add_argument(
        "--max-usd", type=float, help="nothing more is produced once so much is spent (no cap)"
    )
    parser.add_argument(
        "--max-usd-per-hour",
        type=float,
        help="when more is spent, only what readers wait for is produced (no cap)",
    )
    parser.add_argument(
        "--owner", help="a restarted coordinator of the same owner takes the cache's lock over at once"
    )
    parser.add_argument(
        "--insecure",
        action="store_const",
        const=True,
        help="allow what is not on this machine without TLS and a token",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="PEM file of this server's certificate chain")
    parser.add_argument("--tls-key", metavar="FILE", help="PEM file of its key")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", help="PEM file: clients must show a certificate of this authority"
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="tokens, one in each line, of which clients must know one"
    )
    parser.add_argument(
        "--health-listen", help="another address, on this machine, for the health service alone"
    )
    parser.add_argument(
        "--file-roots",
        help="directories for file:// sources and key lists (any, or none where others reach it)",
    )
    for one in fields(Settings):
        if words := one.metadata.get("help"):
            flag = f"--{one.name.replace('_', '-')}"
            if one.type == "bool":
                parser.add_argument(flag, action="store_const", const=True, help=words)
            else:
                parser.add_argument(flag, type=_TYPES[str(one.type)], help=words)
    parser.add_argument("--log-level", help="DEBUG, INFO, WARNING or ERROR (INFO)")
    parser.add_argument(
        "--exit-with-stdin", action="store_const", const=True, help="end when stdin is closed"
    )


class _LinesToShow(logging.Formatter):
    """Log lines name keys, sources and errors of others, and are read in terminals."""

    def format(self, record: logging.LogRecord) -> str:
        return shown_lines(super().format(record))


def run(arguments: argparse.Namespace) -> int:
    """Serve with parsed options; give the exit code."""
    from superdl.coordinator.server.server import serve  # grpc is slow to import, and --help does not need it

    names = {field.name for field in fields(Settings)}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    try:
        settings = load_settings(given, os.environ, arguments.config)
        handler = RepeatedLines(sys.stderr)
        handler.setFormatter(_LinesToShow("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
        keep_secrets_out_of_logs()
        asyncio.run(serve(settings))
    except SuperError as error:
        sys.stderr.write(shown_lines(f"superdl coordinator: {error}\n"))
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m superdl.coordinator", description="Run a SUPER coordinator."
    )
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
