"""``superdl doctor``: is this machine fit to train, and does it reach what it needs? The checks are
:mod:`superdl.doctor`'s.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from superdl.doctor import Finding

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument("--coordinator", help="address; default SUPER_COORDINATOR, else the stack's")
    parser.add_argument("--cache", help="address; default SUPER_CACHE, else the stack's")
    parser.add_argument(
        "--stack", metavar="FILE", help="JSON that aws cloudformation describe-stacks printed"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check one after the other, and print; 1 if something is bad."""
    from superdl.doctor import Verdict
    from superdl.doctor.machine import check_shared_memory
    from superdl.doctor.services import check_cache, check_coordinator
    from superdl.doctor.stack import Stack, read_stack

    stack = read_stack(arguments.stack) if arguments.stack else Stack()
    coordinator = arguments.coordinator or os.environ.get("SUPER_COORDINATOR") or stack.coordinator
    cache = arguments.cache or os.environ.get("SUPER_CACHE") or stack.cache
    findings = [check_shared_memory(), *check_coordinator(coordinator), check_cache(cache)]
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    else:
        _print(findings)
    return int(any(finding.verdict is Verdict.BAD for finding in findings))


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        remedy = f"\n{'':{width + 11}}{finding.remedy}" if finding.remedy else ""
        sys.stdout.write(f"{finding.check:{width}}  {finding.verdict:8} {finding.reason}{remedy}\n")
