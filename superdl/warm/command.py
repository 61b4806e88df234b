"""``superdl warm SOURCE``: fill a coordinator's cache or store ahead of the jobs. The work is
:mod:`superdl.warm`'s.

Exit codes beside the command's own: 0 all samples that fit are there, 1 some failed or it ended early.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from superdl.options import above_zero, add_recipe_options, agreed, recipe_of
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.sizes import parse_bytes

if TYPE_CHECKING:
    import argparse

    from superdl.super_wire.recipe import Recipe

__all__ = ["add_arguments", "run"]

_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument(
        "source", help="s3://bucket/prefix, file:///directory or a path, as SuperDataset takes it"
    )
    parser.add_argument("--coordinator", help="address; default SUPER_COORDINATOR")
    add_recipe_options(parser)
    parser.add_argument("--key-list", metavar="URL", help="the dataset's key list, if it has one")
    parser.add_argument("--alias", help="the name that stands for the source's place in ids")
    parser.add_argument("--versions", choices=("times", "digests"), help="of files, in ids")
    parser.add_argument(
        "--shuffle", action="store_true", help="in the order of a job that shuffles, what it reads first"
    )
    parser.add_argument("--seed", type=int, default=0, help="of that job's shuffle")
    parser.add_argument(
        "--to", choices=("cache", "store"), help="what to fill (the store where the coordinator has one)"
    )
    parser.add_argument("--max-bytes", metavar="SIZE", help="stop at so much in all, such as 100gb")
    parser.add_argument(
        "--max-usd", type=float, default=math.inf, metavar="USD", help="stop at about so much"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="give up when no sample of a batch comes for so long (120)",
    )
    parser.add_argument(
        "--timeout", type=float, default=math.inf, metavar="SECONDS", help="stop after so long"
    )
    parser.add_argument("--estimate", action="store_true", help="say what it would take, and end")
    parser.add_argument("--yes", action="store_true", help="do not ask whether to begin")
    parser.add_argument("--json", action="store_true", help="print the report as JSON on standard output")


def run(arguments: argparse.Namespace) -> int:
    """Estimate, ask, fill, report."""
    from superdl.experiments.console import Console  # --help needs none of this
    from superdl.sampler.rpc import checked_address
    from superdl.super_dataset import SuperDataset
    from superdl.warm import Limits, estimate_of, fill, standing_of
    from superdl.warm.report import Ended, WarmProgress, print_estimate, print_report

    recipe = _recipe(arguments)
    limits = Limits(
        max_bytes=parse_bytes(arguments.max_bytes, "--max-bytes") if arguments.max_bytes else 0,
        max_usd=above_zero("--max-usd", arguments.max_usd),
        patience_s=above_zero("--patience", arguments.patience),
        timeout_s=above_zero("--timeout", arguments.timeout),
    )
    address = checked_address(_address(arguments), "--coordinator")
    dataset = SuperDataset(
        arguments.source,
        recipe,
        key_list=arguments.key_list,
        alias=arguments.alias,
        versions=arguments.versions,
    )
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    standing = standing_of(
        address, dataset, run=os.urandom(16).hex(), listed=lambda count: console.print(f"{count:,} listed")
    )
    target = arguments.to or ("store" if standing.store else "cache")
    if target == "store" and not standing.store:
        raise ConfigError(
            f"the coordinator at {address} has no store: start it with --store, or warm --to cache"
        )
    estimate = estimate_of(standing, recipe, dataset.source, to_store=target == "store")
    print_estimate(estimate, console)
    if arguments.estimate:
        _print_json(arguments, {"estimate": estimate.to_mapping()})
        return 0
    otherwise = "--yes begins without asking, --estimate only tells"
    if not agreed(f"fill the {target}?", yes=arguments.yes, otherwise=otherwise):
        console.print("nothing was done")
        return 0
    progress = WarmProgress(console, estimate.samples)
    try:
        report = fill(
            dataset,
            standing,
            estimate,
            coordinator=address,
            limits=limits,
            shuffle=arguments.shuffle,
            seed=arguments.seed,
            tell=progress.tell,
        )
    finally:
        progress.close()
    print_report(report, console)
    _print_json(arguments, {"estimate": estimate.to_mapping(), **report.to_mapping()})
    if report.ended is Ended.INTERRUPTED:
        return _INTERRUPTED
    return 0 if report.done else 1


def _address(arguments: argparse.Namespace) -> str:
    address = arguments.coordinator or os.environ.get("SUPER_COORDINATOR")
    if not address:
        raise ConfigError(
            "superdl warm needs a coordinator that stays (superdl coordinator --listen ...): the embedded "
            "one goes with its run, and its cache with it. Name it: --coordinator host:port, or "
            "SUPER_COORDINATOR"
        )
    return str(address)


def _recipe(arguments: argparse.Namespace) -> Recipe:
    """The recipe that the options name.

    Raises:
        ConfigError: they name none, or two, or one that is random.
    """
    recipe = recipe_of(arguments)
    if recipe is None:
        raise ConfigError(
            "say what is done to the images as the jobs will: --resize 256 --crop 224, or --recipe FILE.json"
        )
    if recipe.random:
        raise ConfigError(
            "this recipe is random: each epoch has samples of its own, which no warming can have ready. Put "
            "random augmentation after the cache (SuperDataset(transform=Augment(...)), docs/augmentation.md)"
        )
    return recipe


def _print_json(arguments: argparse.Namespace, mapping: dict[str, Any]) -> None:
    if arguments.json:
        sys.stdout.write(json.dumps(mapping, indent=2) + "\n")
