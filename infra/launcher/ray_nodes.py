"""``python ray_nodes.py ADDRESS NODES SECONDS``: waits until Ray at an address has so many nodes.

Exit code 0 if it has, 1 if it has not in that time. It is a program of its own, started by path, so that no
launcher imports Ray.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_POLL_S = 0.2


def main(arguments: Sequence[str]) -> int:
    """Wait for nodes."""
    ray: Any = importlib.import_module("ray")  # not everyone has it
    address, nodes, wait_s = arguments[0], int(arguments[1]), float(arguments[2])
    deadline_s = time.monotonic() + wait_s
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    while (alive := sum(node["Alive"] for node in ray.nodes())) < nodes:
        if time.monotonic() > deadline_s:
            sys.stderr.write(f"Ray at {address} has {alive} of {nodes} nodes after {wait_s:g} s\n")
            return 1
        time.sleep(_POLL_S)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
