"""Run long listings in a separate process, to spare the coordinator's interpreter and memory.

The process reads a request as one line of JSON. Twice a second, it writes the number of samples
so far, or "packing" once all have been listed. At the end, it writes an error or null.
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

_REPORT_S = 0.5
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
    """List a source like :func:`.list_source`, in a separate process that writes the catalog to ``out``.

    Raises ``SourceError`` if the process exits prematurely.
    """
    request = {"out": out, "what": (source, key_list, naming, classes), "allowed": asdict(allowed)}
    command = [sys.executable, "-P", "-m", "superdl.coordinator.catalog.listing_process"]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        requests, reports = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        try:
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            for line in reports:
                if cancelled.is_set():
                    raise ListingCancelledError("the listing was cancelled")
                if (report := json.loads(line)) is None:
                    return
                if isinstance(report, list):
                    raise error_from_name(*report)
                progress(None if report == _PACKING else report)
        except BrokenPipeError:  # the exit code shows why it ended
            pass
        finally:
            process.kill()
    raise SourceError(
        f"the process that listed {source} ended unexpectedly (exit code {process.wait()}; -9 means that it "
        "was killed, for example because it used too much memory): see the coordinator's log"
    )


def _serve() -> None:
    request = json.loads(sys.stdin.readline())
    source, key_list, naming, classes = request["what"]
    limits: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in request["allowed"].items()
    }
    latest: list[int | str] = [0]
    done = threading.Event()

    def report_regularly() -> None:
        while not done.wait(_REPORT_S):
            _report(latest[0])

    def progress(count: int | None) -> None:
        latest[0] = _PACKING if count is None else count
        if count is None:
            _report(_PACKING)  # at once, because packing may be short

    reporting = threading.Thread(target=report_regularly, daemon=True)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    reporting.start()
    error = None
    try:
        options = Naming(*naming), tuple(classes)
        catalog = list_source(source, key_list, progress, None, *options, allowed=Allowed(**limits))
        with open(request["out"], "wb") as stream:  # noqa: PTH123  # a path chosen by the coordinator
            write_catalog(catalog, stream)
    except SuperError as failure:
        error = [type(failure).__name__, str(failure)]
    except OSError as failure:
        error = ["SourceError", f"the catalog of {source} cannot be written: {failure}"]
    done.set()
    reporting.join()
    _report(error)
    os._exit(0)  # threads of a failed listing may still wait for replies


def _report(report: object) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    _serve()
