"""Writes the tables of docs/cost.md, or checks that they are what the price table gives.

A table stands between ``<!-- superdl cost ... --markdown -->``, the command that prints it, and
``<!-- end -->``.
``python -m tools.cost_tables`` writes all of them, ``--check`` compares. What is in them is
:mod:`superdl.cost`'s.

Exit codes: 0 fine, 1 the check found a difference, 2 the page names no such command.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path

from superdl.main import main as superdl

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cost.md"

_TABLE = re.compile(r"(<!-- superdl (cost .*?) -->\n).*?(<!-- end -->)", re.DOTALL)


class CommandError(Exception):
    """A command of the page does not run; the message has its own words."""


def main(argv: list[str] | None = None) -> int:
    """Write, or with ``--check`` compare; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/cost.md, or check them.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a table is old")
    arguments = parser.parse_args(argv)
    text = PAGE.read_text(encoding="utf-8")
    try:
        fresh = regenerated(text)
    except CommandError as error:
        sys.stderr.write(f"docs/cost.md: {error}\n")
        return 2
    if not arguments.check:
        PAGE.write_text(fresh, encoding="utf-8")
        return 0
    if fresh != text:
        sys.stderr.write("docs/cost.md has other figures than the price table: python -m tools.cost_tables\n")
        return 1
    return 0


def regenerated(text: str) -> str:
    """The page with each table as its command prints it now.

    Raises:
        CommandError: a command is refused.
    """
    return _TABLE.sub(lambda found: f"{found[1]}{_printed(found[2])}{found[3]}", text)


def _printed(command: str) -> str:
    os.environ.pop("SUPER_PRICES", None)  # the page is about the table that comes along
    printed, refused = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(refused):
        code = superdl(shlex.split(command))
    if code:
        raise CommandError(f"superdl {command}: {refused.getvalue().strip()}")
    return printed.getvalue()


if __name__ == "__main__":
    sys.exit(main())
