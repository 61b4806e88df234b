"""Stands in for the coordinator's process under a supervisor: listens, and ends with its standard input.

The first argument is the number of starts, counted in the file that the second names, after which it ends at
once with exit code 3; the supervisor appends the rest.
"""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("good_starts", type=int)
    parser.add_argument("count_file", type=Path)
    for option in ("--listen", "--cache", "--executor", "--slots", "--worker-nice", "--owner"):
        parser.add_argument(option, required=True)
    parser.add_argument("--metrics-listen")
    parser.add_argument("--exit-with-stdin", action="store_true", required=True)
    options = parser.parse_args()
    with options.count_file.open("a") as counter:
        counter.write("start\n")
    if len(options.count_file.read_text().splitlines()) > options.good_starts:
        sys.stderr.write("the stand-in has no more good starts\n")
        sys.exit(3)
    path = Path(options.listen.removeprefix("unix:"))
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        sys.stdin.read()


if __name__ == "__main__":
    main()
