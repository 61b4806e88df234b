"""Options that subcommands share, and a prompt for the user's confirmation."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from superdl.super_wire.recipe import Recipe

Number = TypeVar("Number", int, float)


def add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    """Add ``--set``, with ``example`` in its help text."""
    description = f"replace one value, such as {example}; may be repeated"
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=description
    )


def add_coordinator(parser: argparse.ArgumentParser) -> None:
    """Add ``--coordinator``, which :func:`coordinator_of` reads."""
    description = (
        "the coordinator's address (default: SUPER_COORDINATOR, else your only embedded run on this host)"
    )
    parser.add_argument("--coordinator", help=description)


def coordinator_of(arguments: argparse.Namespace, command: str) -> str:
    """Return the coordinator's address: from the option, ``SUPER_COORDINATOR``, or the only embedded run.

    Raises ``ConfigError`` if there is no run or several. The message lists ``command`` for each run.
    """
    from superdl.super_wire.run_directory import RunDirectory

    if coordinator := arguments.coordinator or os.environ.get("SUPER_COORDINATOR"):
        return str(coordinator)
    runs = [f"unix:{run.coordinator_socket}" for run in RunDirectory.of_this_user()]
    if len(runs) == 1:
        return runs[0]
    if runs:
        lines = "".join(f"\n  superdl {command} --coordinator {address}" for address in runs)
        raise ConfigError(f"you have {len(runs)} embedded runs on this host; choose one:{lines}")
    raise ConfigError(
        "no coordinator is set, and you have no embedded run on this host: use --coordinator host:port, "
        "or set the variable SUPER_COORDINATOR"
    )


def above_zero(option: str, value: Number) -> Number:
    """Return an option's value; raise ``ConfigError`` unless it is above 0."""
    if not value > 0:
        raise ConfigError(f"{option} must be above 0, not {value}")
    return value


def confirmed(question: str, *, yes: bool, remedy: str) -> bool:
    """Return whether the user agrees, via ``yes`` or a prompt; raise ``ConfigError`` without a terminal."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"cannot ask for confirmation without a terminal: {remedy}")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Add options that define a recipe. None of them is required."""
    add = parser.add_argument
    add("--resize", type=int, metavar="PIXELS", help="resized shorter side, as in Recipe.image(resize=)")
    add("--crop", type=int, metavar="PIXELS", help="side of the central crop, as in Recipe.image(crop=)")
    add("--recipe", metavar="FILE", help="a recipe in JSON, as in Recipe(...).json, or a list of steps")


def recipe_of(arguments: argparse.Namespace) -> Recipe | None:
    """Return the recipe that the options define, if any; raise ``ConfigError`` if they define two."""
    from superdl.super_wire.recipe import Recipe

    sizes = arguments.resize is not None or arguments.crop is not None
    if sizes and arguments.recipe:
        raise ConfigError(
            "set the recipe with --resize 256 --crop 224 or with --recipe FILE.json, not with both"
        )
    if arguments.recipe:
        return _read(arguments.recipe)
    return Recipe.image(resize=arguments.resize, crop=arguments.crop) if sizes else None


def _read(file: str) -> Recipe:
    from superdl.super_wire.recipe import Recipe
    from superdl.super_wire.user_text import load_json

    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --recipe {file}: {error}") from error
    fields = load_json(text, f"--recipe {file}")
    return Recipe(fields) if isinstance(fields, list) else Recipe.from_json(text)
