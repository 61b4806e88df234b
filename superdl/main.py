"""The ``superdl`` command: parse arguments, dispatch to a subcommand's module, map errors to exit codes.

Exit codes: 0 success; 1 failure, with the reason on stderr; 2 wrong usage or settings; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from difflib import get_close_matches
from importlib import import_module  # noqa: TID251  # of a fixed table
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Modules with add_arguments and run; the other commands are in superdl.experiment_commands.
_MODULES = {
    "doctor": "superdl.doctor_command",
    "warm": "superdl.warm_command",
    "stats": "superdl.stats_command",
    "data": "superdl.data_command",
    "cost": "superdl.cost_command",
    "coordinator": "superdl.coordinator.__main__",
    "index": "superdl.index.command",
    "store": "superdl.store.command",
    "top": "superdl.top.command",
    "worker": "superdl.lambda_prefetch.worker.command",
}
_GROUPS = {
    "load": {
        "doctor": "check for problems that would stop training, and suggest remedies",
        "index": "write the key list to load tars, zips, TFRecords, Parquet, MDS and LitData as they are",
        "warm": "decode images ahead of the jobs that will read them",
        "store": "list, check and remove stored samples",
    },
    "watch": {
        "top": "watch jobs, functions, cache and cost live, in a terminal or a browser",
        "stats": "print the state of jobs, or the history of a batch",
    },
    "train": {
        "run": "train a model from a spec, and report where the time went",
        "compare": "train with several loaders in turn, and compare them",
        "report": "rewrite the report page of a run or a comparison",
        "evaluate": "compute the accuracy and loss of a checkpoint",
        "data": "create images to experiment with, or upload a folder to a bucket",
        "demo": "compare SUPER with DataLoader on this machine in a minute, on your images or generated ones",
        "bench": "repeat the measurements of SUPER and other loaders (needs a checkout)",
    },
    "plan": {
        "cost": "estimate the cost of your epochs in US dollars, for five ways of loading",
        "advise": "probe a run for ten seconds, predict its speed, and suggest improvements",
        "simulate": "predict throughput, waiting and cost of jobs that you describe",
    },
    "serve": {
        "coordinator": "start a coordinator that jobs share",
        "worker": "run functions on this machine for a coordinator",
    },
}
_COMMANDS = {name: text for commands in _GROUPS.values() for name, text in commands.items()}
_INDENT, _NARROWEST = 18, 40


def _functions(
    name: str,
) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
    """Return the functions that add a command's options and run it."""
    if name in _MODULES:
        module = import_module(_MODULES[name])
        return module.add_arguments, module.run
    from superdl.experiment_commands import COMMANDS

    return COMMANDS[name]


def command_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser for all commands. Only the chosen command has its options."""
    from importlib.metadata import version  # only when the command runs

    parser = argparse.ArgumentParser(
        prog="superdl",
        usage="superdl [-h] [--version] COMMAND ...",
        description="SUPER: a data loader for PyTorch. 'superdl COMMAND --help' lists a command's options.",
        epilog=_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"superdl {version('superdl')}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", prog="superdl", help=argparse.SUPPRESS
    )
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, description=text[0].upper() + text[1:] + ".")
        # Subcommands are imported on demand.
        if name == chosen:
            _functions(name)[0](command)
    return parser


def _overview() -> str:
    width, lines = max(shutil.get_terminal_size().columns, _NARROWEST), []
    for group, commands in _GROUPS.items():
        lines.append(f"{group}:")
        for name, text in commands.items():
            lines += textwrap.wrap(
                text, width, initial_indent=f"    {name:{_INDENT - 4}}", subsequent_indent=" " * _INDENT
            )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    chosen = next((word for word in words if word in _COMMANDS), None)
    parser = command_parser(chosen)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    if chosen is None and not words[0].startswith("-"):
        similar = get_close_matches(words[0], _COMMANDS, 1)
        hint = f"did you mean {similar[0]}?" if similar else "superdl --help lists all commands"
        parser.error(f"there is no command {words[0]!r}; {hint}")
    arguments = parser.parse_args(words)
    from superdl.super_wire.display import shown_lines  # not for --help
    from superdl.super_wire.errors import ConfigError, SuperError, UsageError

    try:
        code = _functions(arguments.command)[1](arguments)
    except (ConfigError, UsageError) as error:
        sys.stderr.write(shown_lines(f"superdl {arguments.command}: {error}\n"))
        return 2
    except SuperError as error:
        sys.stderr.write(shown_lines(f"superdl {arguments.command}: {type(error).__name__}: {error}\n"))
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"superdl {arguments.command}: interrupted\n")
        return 130
    except BrokenPipeError:  # the reader of our output, such as head, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
