"""Run long listings in a separate process, to relieve the coordinator's interpreter and memory.

The process reads a request, a line of JSON. Twice a second, it writes the number of samples
so far, or that it is packing them. Finally, it writes an error or null.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, cast

from superdl.coordinator.catalog.catalog_file import write_catalog
from superdl.coordinator.catalog.lister import list_source
from superdl.coordinator.catalog.listing import ListingCancelledError
from superdl.coordinator.catalog.source import Allowed
from superdl.super_wire.errors import SourceError, SuperError, error_from_name
from superdl.super_wire.ids import Naming

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TELL_S = 0.5
_PACKING = "packing"


def list_apart(
    out: str,
    source: str,
    key_list: str | None,
    progress: Callable[[int | None], None],
    cancelled: threading.Event,
    naming: Naming,
    classes: Sequence[str],
    *,
    allowed: Allowed,
) -> None:
    """List a source like :func:`.list_source`, and write the catalog to ``out``. Raises ``SuperError`` if the
    process ends early.
    """
    request = {"out": out, "what": (source, key_list, naming, classes), "allowed": asdict(allowed)}
    command = [sys.executable, "-P", "-m", "superdl.coordinator.catalog.listing_process"]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        to_it, from_it = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        try:
            to_it.write(json.dumps(request) + "\n")
            to_it.flush()
            for line in from_it:
                # The process reports twice a second, so a cancellation is noticed soon.
                if cancelled.is_set():
                    raise ListingCancelledError("the listing was cancelled")
                if (answer := json.loads(line)) is None:
                    return
                if isinstance(answer, list):
                    raise error_from_name(*answer)
                progress(None if answer == _PACKING else answer)
        except BrokenPipeError:  # the process ended; its exit code shows why
            pass
        finally:
            process.kill()
    raise SourceError(
        f"the process that listed {source} exited unexpectedly (exit code {process.wait()}; -9 means that "
        "it was killed, for example because it used too much memory): see the coordinator's log"
    )


def _serve() -> None:
    request = json.loads(sys.stdin.readline())
    source, key_list, naming, classes = request["what"]
    limits: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in request["allowed"].items()
    }
    latest: list[int | str] = [0]
    done = threading.Event()

    def tell() -> None:
        while not done.wait(_TELL_S):
            _tell(latest[0])

    def progress(count: int | None) -> None:
        latest[0] = _PACKING if count is None else count
        if count is None:
            _tell(_PACKING)  # immediately, because packing may be short

    telling = threading.Thread(target=tell, daemon=True)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    telling.start()
    answer = None
    try:
        how = Naming(*naming), tuple(classes)
        catalog = list_source(source, key_list, progress, None, *how, allowed=Allowed(**limits))
        with open(request["out"], "wb") as stream:  # noqa: PTH123  # a path chosen by the coordinator
            write_catalog(catalog, stream)
    except SuperError as error:
        answer = [type(error).__name__, str(error)]
    except OSError as error:
        answer = ["SourceError", f"the catalog of {source} cannot be written: {error}"]
    done.set()
    telling.join()
    _tell(answer)
    os._exit(0)  # threads of a failed listing may still wait for replies


def _tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _end_with_stdin() -> None:
    # This process ends with its standard input.
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    _serve()
