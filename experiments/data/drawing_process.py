"""The process that draws one share of a made set: told what by standard input, telling how many by output.

It ends when nobody listens to its output any more. Started by `experiments.data.drawing`.
"""

from __future__ import annotations

import os
import sys

from superdl.experiments.data.drawing import Drawing, draw_share

__all__ = ["main"]


def main() -> int:
    """Draw; the exit code is 0 if all of the share is written."""
    share, shares = (int(word) for word in sys.argv[1:])
    drawing = Drawing.from_json(sys.stdin.read())
    try:
        draw_share(drawing, share, shares, lambda count: _tell(f"{count}\n"))
    except BrokenPipeError:  # whoever started this is gone
        return 1
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        sys.stderr.write(f"{error.strerror or error}{where}\n")
        return 1
    return 0


def _tell(line: str) -> None:
    os.write(sys.stdout.fileno(), line.encode())  # at once, and whole


if __name__ == "__main__":
    sys.exit(main())
