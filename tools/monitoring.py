"""Writes the table of metrics in docs/monitoring.md, or with ``--check`` sees that it is not old.

The metrics are :data:`superdl.coordinator.server.metrics.METRICS`. Exit codes: 0 fine, 1 something is old.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from superdl.coordinator.server.metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "monitoring.md"

_TABLE = re.compile(r"(<!-- metrics -->\n).*?(<!-- end -->)", re.DOTALL)


def files() -> dict[Path, str]:
    """What each file has to hold."""
    page = _TABLE.sub(lambda found: f"{found[1]}{table()}{found[2]}", PAGE.read_text(encoding="utf-8"))
    return {PAGE: page}


def table() -> str:
    """The metrics as a table in Markdown."""
    rows = [f"| `{one.name}` | {', '.join(one.labels)} | {one.help} |\n" for one in METRICS]
    return "".join(["| metric | labels | what it says |\n|---|---|---|\n", *rows])


def main(argv: list[str] | None = None) -> int:
    """Write, or with ``--check`` compare; return the exit code."""
    parser = argparse.ArgumentParser(description="Write what follows from the list of metrics, or check it.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is old")
    arguments = parser.parse_args(argv)
    old = [path for path, text in files().items() if not path.exists() or path.read_text("utf-8") != text]
    for path in old:
        if arguments.check:
            sys.stderr.write(f"{path.relative_to(ROOT)} is old: python -m tools.monitoring\n")
        else:
            path.write_text(files()[path], encoding="utf-8")
    return int(arguments.check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
