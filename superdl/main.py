"""The command ``superdl``: parses, hands over to a subcommand's module, maps errors to exit codes.

Exit codes: 0 done; 1 it failed, the reason is on stderr; 2 wrong use or settings; 130 interrupted.
Subcommands are imported when asked for.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["main"]

# The others are superdl.NAME_command.
_MODULES = {
    "coordinator": "superdl.coordinator.__main__",
    "demo": "superdl.demo.command",
    "index": "superdl.index.command",
    "store": "superdl.store.command",
    "top": "superdl.top.command",
    "worker": "superdl.lambda_prefetch.worker.command",
}
_COMMANDS = {
    "run": "train from a spec and report",
    "advise": "foretell a run from a probe of ten seconds, and name the change that helps most",
    "compare": "run the loaders of a spec side by side, and say how they differ",
    "evaluate": "say what a run's checkpoint is worth on validation images, class by class",
    "report": "make the page of a run anew, from the files in its directory",
    "demo": "see SUPER beside DataLoader on this machine",
    "data": "make the image sets of the experiments, or list them",
    "coordinator": "run a coordinator",
    "worker": "run functions for a coordinator, on this machine or another",
    "cost": "say what an epoch and a month cost, by way of loading",
    "simulate": "predict throughput, waiting and cost of jobs, functions and cache",
    "index": "write the key list of samples that lie in shards: tars, zips, TFRecords, Parquet, MDS, LitData",
    "warm": "fill the cache or the store ahead of the jobs that will read it",
    "store": "look after a store of decoded records: what lies in it, whether it is right, what may go",
    "doctor": "see what would keep this machine from training, and what to do about it",
    "stats": "show what a coordinator's jobs do, or what happened to a batch",
    "top": "show live what a coordinator's jobs, functions, cache and dollars do",
    "bench": "measure SUPER beside other loaders (needs a checkout)",
}


def _module(name: str) -> ModuleType:
    return import_module(_MODULES.get(name, f"superdl.{name}_command"))


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    from importlib.metadata import version  # only when the command runs

    parser = argparse.ArgumentParser(prog="superdl", description="SUPER: a data loader for PyTorch.")
    parser.add_argument("--version", action="version", version=f"superdl {version('superdl')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == chosen:
            _module(name).add_arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and give the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    chosen = next((word for word in words if word in _COMMANDS), None)
    arguments = _parser(chosen).parse_args(words)
    from superdl.super_wire.errors import ConfigError, SuperError, UsageError
    from superdl.super_wire.redaction import shown_lines  # not for --help

    try:
        code: int = _module(arguments.command).run(arguments)
    except (ConfigError, UsageError) as error:
        sys.stderr.write(shown_lines(f"superdl {arguments.command}: {error}\n"))
        return 2
    except SuperError as error:
        sys.stderr.write(shown_lines(f"superdl {arguments.command}: {type(error).__name__}: {error}\n"))
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"superdl {arguments.command}: interrupted\n")
        return 130
    except BrokenPipeError:  # the reader of our output, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
