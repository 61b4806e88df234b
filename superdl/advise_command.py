"""``superdl advise SPEC``: predict a run, and recommend the change that helps it most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.options import add_overrides
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument("spec", help="as superdl run takes it; it is probed for ten seconds")
    add_overrides(parser, "loader.num_workers=8")
    parser.add_argument(
        "--ranks", type=int, default=1, help="of the run: GPUs of this host, or hosts without one; default 1"
    )
    quick_help = "the spec's small variant: its section quick, else two epochs of 20 steps"
    parser.add_argument("--quick", action="store_true", help=quick_help)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Probe, and print the advice."""
    from superdl.experiments.console import Console, say  # --help does not need these imports
    from superdl.experiments.output import tell_json
    from superdl.experiments.simulator.advice import advise, print_advice
    from superdl.run_command import spec_of

    console = Console(stderr=arguments.json)
    if arguments.ranks < 1:
        raise ConfigError(f"--ranks is 1 or more, not {arguments.ranks}")
    advice = advise(spec_of(arguments), lambda line: say(console, line), arguments.ranks)
    print_advice(advice, console)
    tell_json(advice.to_mapping(), shown=arguments.json)
    return 0
