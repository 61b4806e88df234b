"""``superdl doctor``: check whether this machine can train, and print remedies if not.

Exit codes: 0 no check failed (warnings and skipped checks are printed), 1 a check failed, 2 wrong usage.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from superdl.options import above_zero, add_recipe_options, recipe_of

if TYPE_CHECKING:
    import argparse

    from superdl.doctor import Case

_FUNCTION_SETTINGS = re.compile(r"(executor|function|file_roots|insecure)$|lambda_")
_INDENT = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    add = parser.add_argument
    add("source", nargs="?", default="", help="s3://bucket/prefix, file:///directory or a path")
    add_recipe_options(parser)
    parser.epilog = "By default, images are resized to 256 and cropped to 224."
    add("--key-list", default="", help="URL of a CSV, JSONL or Parquet file with keys and labels")
    add("--coordinator", help="the coordinator's address (default: SUPER_COORDINATOR)")
    add("--cache", help="the cache's address (default: SUPER_CACHE, else the coordinator's)")
    add(
        "--store",
        help="directory, s3://bucket/prefix or none (default: SUPER_STORE, else in your cache directory)",
    )
    add("--executor", help="how functions run (default: as the coordinator runs them, else local)")
    patience = "time to wait for the first sample (default: 120)"
    add("--patience", type=float, default=120.0, metavar="SECONDS", help=patience)
    add("--all", action="store_true", help="decode every sample, and list all bad ones")
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the checks in order and print the findings; return 1 if a check failed."""
    from superdl.doctor import ALL_SAMPLES, CHECKS, CheckStatus, run_checks
    from superdl.super_wire.display import shown_lines

    case = _case_of(arguments)
    checks = (*CHECKS, ALL_SAMPLES) if arguments.all else CHECKS
    width = max(len(check.name) for check in checks)
    findings = []
    for finding in run_checks(checks, case):
        findings.append(finding)
        if not arguments.json:
            remedy = f"\n{'':{width + _INDENT + 4}}{finding.remedy}" if finding.remedy else ""
            line = f"{finding.verdict:{_INDENT}}{finding.check:{width}}  {finding.reason}{remedy}\n"
            sys.stdout.write(shown_lines(line))
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    else:
        counts = Counter(finding.verdict for finding in findings)
        sys.stdout.write(", ".join(f"{counts[status]} {status}" for status in CheckStatus) + "\n")
    return int(any(finding.verdict is CheckStatus.BAD for finding in findings))


def _case_of(arguments: argparse.Namespace) -> Case:
    """Return the input for the checks; raise ``ConfigError`` if any of it is invalid."""
    from superdl.coordinator.catalog.source import parse_source
    from superdl.coordinator.server.settings import Settings, load_settings
    from superdl.doctor import Case
    from superdl.super_wire.display import keep_secrets_out_of_logs
    from superdl.super_wire.recipe import Recipe
    from superdl.super_wire.source_url import split_url

    keep_secrets_out_of_logs()
    # Only the coordinator's settings that define how functions run; no other variables are read.
    names = [field.name for field in fields(Settings) if _FUNCTION_SETTINGS.match(field.name)]
    named = {name: os.environ.get(f"SUPER_{name.upper()}") or None for name in names}
    named["executor"] = arguments.executor or named["executor"]
    if arguments.key_list:
        split_url(arguments.key_list, "key list")
    return Case(
        settings=load_settings(named, {}),
        recipe=recipe_of(arguments) or Recipe.image(resize=256, crop=224),
        source=parse_source(arguments.source).url if arguments.source else "",
        key_list=arguments.key_list,
        coordinator=arguments.coordinator or os.environ.get("SUPER_COORDINATOR", ""),
        named_cache=arguments.cache or os.environ.get("SUPER_CACHE", ""),
        named_store=arguments.store or os.environ.get("SUPER_STORE", ""),
        patience_s=above_zero("--patience", arguments.patience),
    )
