"""Options shared by subcommands, and confirmation by the user."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.redaction import shown

if TYPE_CHECKING:
    import argparse

    from superdl.super_wire.recipe import Recipe

Number = TypeVar("Number", int, float)


def add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    """Add ``--set``, with ``example`` in its help."""
    description = f"replace one value, such as {example}; may be repeated"
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=description
    )


def add_coordinator(parser: argparse.ArgumentParser) -> None:
    """Add ``--coordinator``, which :func:`coordinator_of` reads."""
    description = "address; default SUPER_COORDINATOR, else the one embedded run of this user on this host"
    parser.add_argument("--coordinator", help=description)


def coordinator_of(arguments: argparse.Namespace, command: str) -> str:
    """Return the address of the option, of ``SUPER_COORDINATOR``, or of the only embedded run.

    ``ConfigError`` if there is none, or several runs, which it lists for ``command``.
    """
    from superdl.super_wire.run_directory import RunDirectory

    if coordinator := arguments.coordinator or os.environ.get("SUPER_COORDINATOR"):
        return str(coordinator)
    runs = [f"unix:{run.coordinator_socket}" for run in RunDirectory.of_this_user()]
    if len(runs) == 1:
        return runs[0]
    if runs:
        lines = "".join(
            f"\n  superdl {command} --coordinator {address}  # {_sources(address)}" for address in runs
        )
        raise ConfigError(f"{len(runs)} embedded runs of this user are on this host; name one:{lines}")
    raise ConfigError(
        "name the coordinator: --coordinator host:port, or the variable SUPER_COORDINATOR (no embedded run "
        "of this user is on this host)"
    )


def _sources(address: str) -> str:
    from superdl.sampler.rpc import Client, Patience
    from superdl.super_wire import coordinator_pb2 as pb

    try:
        answer = Client(address).call("GetJobStats", pb.GetJobStatsRequest(), Patience(1, 1.0, 1.0))
    except SuperError as error:
        return f"does not answer: {type(error).__name__}"
    return shown(", ".join(sorted({job.source for job in answer.jobs})) or "no open jobs")


def above_zero(option: str, value: Number) -> Number:
    """Return the value of an option; ``ConfigError`` unless it is above 0."""
    if not value > 0:
        raise ConfigError(f"{option} is above 0; not {value}")
    return value


def agreed(question: str, *, yes: bool, otherwise: str) -> bool:
    """Return whether the user agrees, or did by ``--yes``; ``ConfigError`` without a terminal."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"no terminal to ask on: {otherwise}")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Add options for a recipe, none of them required."""
    add = parser.add_argument
    add("--resize", type=int, metavar="PIXELS", help="shorter side, as Recipe.image(resize=)")
    add("--crop", type=int, metavar="PIXELS", help="side of the centre, as Recipe.image(crop=)")
    add("--recipe", metavar="FILE", help="a recipe's JSON, as Recipe(...).json gives it, or a list of steps")


def recipe_of(arguments: argparse.Namespace) -> Recipe | None:
    """Return the recipe that the options name, or ``None``; ``ConfigError`` if they name two."""
    from superdl.super_wire.recipe import Recipe

    sizes = arguments.resize is not None or arguments.crop is not None
    if sizes and arguments.recipe:
        raise ConfigError("name the recipe by --resize 256 --crop 224, or --recipe FILE.json: not by both")
    if arguments.recipe:
        return _read(arguments.recipe)
    return Recipe.image(resize=arguments.resize, crop=arguments.crop) if sizes else None


def _read(file: str) -> Recipe:
    from superdl.super_wire.recipe import Recipe
    from superdl.super_wire.user_text import load_json

    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--recipe {file} cannot be read: {error}") from error
    fields = load_json(text, f"--recipe {file}")
    return Recipe(fields) if isinstance(fields, list) else Recipe.from_json(text)
