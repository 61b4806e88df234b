"""Writes the tables of docs/cost.md, or with ``--check`` sees that they are what the price table gives.

A table stands between ``<!-- superdl cost ... --markdown -->``, the command that prints it, and
``<!-- end -->``. What is in them is :mod:`superdl.cost`'s. Exit codes: 0 fine, 1 an old table was found.
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


def main(argv: list[str] | None = None) -> int:
    """Write, or with ``--check`` compare; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/cost.md, or check them.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a table is old")
    arguments = parser.parse_args(argv)
    text = PAGE.read_text(encoding="utf-8")
    fresh = regenerated(text)
    if not arguments.check:
        PAGE.write_text(fresh, encoding="utf-8")
    elif fresh != text:
        sys.stderr.write("docs/cost.md has other figures than the price table: python -m tools.cost_tables\n")
        return 1
    return 0


def regenerated(text: str) -> str:
    """The page with each table as its command prints it now.

    Raises:
        SystemExit: a command is refused.
    """
    return _TABLE.sub(lambda found: f"{found[1]}{_printed(found[2])}{found[3]}", text)


def _printed(command: str) -> str:
    os.environ.pop("SUPER_PRICES", None)  # the page is about the table that comes along
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if superdl(shlex.split(command)):
            raise SystemExit(f"docs/cost.md: superdl {command} is refused")
    return printed.getvalue()


if __name__ == "__main__":
    sys.exit(main())
