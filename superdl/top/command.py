"""``superdl top``: find the coordinator, and show its views one after another."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from superdl.options import above_zero, add_coordinator, coordinator_of
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import shown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from superdl.top.looks import Looks

_INTERVAL_MAX_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    add_coordinator(parser)
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="between looks (%(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="show one look, with rates over one interval")
    parser.add_argument("--json", action="store_true", help="print JSON, a line a look")
    parser.add_argument(
        "--web", type=int, metavar="PORT", help="show a page on this port of 127.0.0.1; 0 takes a free one"
    )


def run(arguments: argparse.Namespace) -> int:
    """Poll and show until Ctrl-C."""
    from superdl.sampler.rpc import Client, checked_address
    from superdl.top.looks import WINDOW_S, Looks

    interval_s, web = above_zero("--interval", arguments.interval), arguments.web is not None
    if interval_s > _INTERVAL_MAX_S:
        raise ConfigError(f"--interval is {_INTERVAL_MAX_S:g} seconds at most; not {interval_s:g}")
    if web and (arguments.once or arguments.json):
        raise ConfigError("--web shows a page until Ctrl-C: leave out --once and --json")
    client = Client(checked_address(coordinator_of(arguments, "top"), "--coordinator"))
    once = arguments.once or not (arguments.json or web or sys.stdout.isatty())
    pause, interrupted = threading.Event(), False
    with client.hold():
        looks = Looks(client, str if arguments.json else shown, max(interval_s, 0.0 if once else WINDOW_S))
        try:
            if once:
                pause.wait(interval_s)
                looks.again()
            with _shown_as(arguments, looks, once=once) as show:
                show(looks.view)
                while not once:
                    pause.wait(interval_s)
                    show(looks.again())
        except KeyboardInterrupt:  # the usual way to end, unless it was to end by itself
            interrupted = True
    if once and interrupted:
        raise KeyboardInterrupt
    return 1 if once and looks.view["unreachable"] else 0


@contextmanager
def _shown_as(
    arguments: argparse.Namespace, looks: Looks, *, once: bool
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    if arguments.web is not None:
        from superdl.top.web import Page

        with Page(arguments.web, looks.late_batches) as page:
            sys.stdout.write(f"superdl top: {page.url} until Ctrl-C\n")
            sys.stdout.flush()
            yield page.show
    elif arguments.json:
        yield lambda view: print(json.dumps(view), flush=True)  # noqa: T201 # for programs
    else:
        from rich.live import Live

        from superdl.experiments.console import Console
        from superdl.top.terminal import rendered

        console = Console(highlight=False, markup=False)
        if once:
            yield lambda view: console.print(rendered(view))
        else:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                yield lambda view: live.update(rendered(view), refresh=True)
