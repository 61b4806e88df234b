"""Run the embedded default's coordinator, for :mod:`superdl.sampler.embedded`.

``python -P -m superdl.coordinator.embedded --directory DIR --ranks FD --grace S --cache-memory
BYTES ...`` accepts ranks on the inherited socket FD. The coordinator's usual options may follow.
"""

from __future__ import annotations

import argparse
import gc
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.coordinator.embedded.ranks import Ranks
from superdl.super_wire.errors import SuperError
from superdl.super_wire.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until there are no more ranks, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m superdl.coordinator.embedded", allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--cache-memory", type=int, default=0)
    own, others = parser.parse_known_args(argv)
    failure = ""
    gc.disable()  # what is loaded stays
    with socket.socket(fileno=own.ranks) as listener:
        ranks = Ranks(RunDirectory(own.directory), listener, own.grace)
        try:
            if own.cache_memory:
                ranks.start_cache(own.cache_memory)
                # The coordinator, worker and slots share these modules, which take the longest to load.
                from superdl.super_wire import coordinator_pb2_grpc, objects, request, store  # noqa: F401

                # Without a cache here, functions run elsewhere.
                ranks.start_worker()
            from superdl.coordinator import __main__ as command
            from superdl.coordinator.server import server  # noqa: F401

            gc.freeze()
            gc.enable()
            return command.serve_with(command.parsed(others), ranks)
        except SuperError as error:
            failure = f"the embedded coordinator {'ended' if ranks.is_serving else 'did not start'}: {error}"
            sys.stderr.write(f"superdl coordinator: {error}\n")
            return 1
        finally:
            ranks.close(failure)


if __name__ == "__main__":
    sys.exit(main())
