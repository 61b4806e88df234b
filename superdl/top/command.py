"""``superdl top``: show a coordinator's current rates, computed from two polls of its counters.

A *view* is the displayed data as JSON values. Rates are per second, and ``None`` before the second poll.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from superdl.options import add_coordinator, coordinator_of
from superdl.stats_command import cache_lines, mapping
from superdl.super_wire.display import shown
from superdl.super_wire.errors import ConfigError, SuperError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from superdl.sampler.rpc import Client, Patience

WINDOW_S = 5.0  # rates over less would flicker, since readers report per batch
_POLL_S = 5.0
_INTERVAL_S = 1.0  # between polls
_LATE_SHOWN = 50

_Stats = dict[str, Any]


class Poller:
    """Polls a coordinator, even across its restarts. ``view`` is the latest result.

    ``text`` makes text from other programs safe to display. Rates are relative to a poll that is at least
    ``window_s`` old. Raises ``SuperError`` if the first poll reaches no coordinator.
    """

    def __init__(self, client: Client, text: Callable[[str], str] = str, window_s: float = WINDOW_S) -> None:
        from superdl.sampler.rpc import FIRST_CONTACT, Patience  # --help does not need it

        self._client, self._text, self._window_s = client, text, window_s
        self._patience = Patience(attempts=1, total_s=_POLL_S, deadline_s=_POLL_S)
        self._polls: deque[tuple[float, _Stats]] = deque()
        self._unreachable: dict[str, Any] | None = None
        self.view = self._query(FIRST_CONTACT)

    def poll(self) -> dict[str, Any]:
        """Poll again. If there is no answer, keep the previous statistics and set ``unreachable``."""
        try:
            self.view = self._query(self._patience)
            self._unreachable = None
        except SuperError as error:
            self._client.cut()  # or grpc would wait before it connects again
            self._polls.clear()
            self._unreachable = self._unreachable or {"since_s": time.time()}
            outage = {**self._unreachable, "why": self._text(str(error))}
            self.view = {**self.view, "clock_s": time.time(), "unreachable": outage}
        return self.view

    def late_batches(self, job: str) -> list[dict[str, Any]]:
        """Return a job's latest batches that readers had to wait for. Thread-safe."""
        from superdl.super_wire import coordinator_pb2 as pb

        request = pb.GetJobStatsRequest(jobs=[job], with_stalls=True)
        reply = self._client.call("GetJobStats", request, self._patience)
        stalls = [stall for stats in reply.jobs for stall in stats.recent_stalls]
        return [mapping(stall, self._text) for stall in stalls[: -_LATE_SHOWN - 1 : -1]]

    def _query(self, patience: Patience) -> dict[str, Any]:
        from superdl.super_wire import coordinator_pb2 as pb

        stats = mapping(self._client.call("GetJobStats", pb.GetJobStatsRequest(), patience), self._text)
        now_s = time.monotonic()
        while len(self._polls) > 1 and self._polls[1][0] <= now_s - self._window_s:
            self._polls.popleft()
        then_s, before = self._polls[0] if self._polls else (now_s, stats)
        self._polls.append((now_s, stats))
        return {
            "coordinator": self._text(self._client.address),
            "clock_s": time.time(),
            "unreachable": None,
            **view_of(before, stats, now_s - then_s),
        }


def view_of(before: Mapping[str, Any], after: Mapping[str, Any], over_s: float) -> dict[str, Any]:
    """Compute the view from two ``GetJobStats`` replies, given as mappings."""

    def rate(old: float, new: float) -> float | None:
        # New entries, and counters that fell because of a restart, count from 0.
        return (new - old if new >= old else new) / over_s if over_s > 0 else None

    def rates(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float | None]:
        return {name: rate(old.get(name, 0), count) for name, count in new.items()}

    def grown(old: Mapping[str, Any], new: Mapping[str, Any], *names: str) -> float | None:
        return rate(sum(old.get(name, 0) for name in names), sum(new[name] for name in names))

    jobs_before = {job["job"]: job for job in before["jobs"]}
    jobs = []
    for job in after["jobs"]:
        old = jobs_before.get(job["job"], {})
        identity = {
            name: job[name] for name in ("job", "source", "ranks", "lapsed_ranks", "epoch", "position")
        }
        jobs.append(
            identity
            | {
                "images_per_s": grown(old, job, "cache_hits", "cache_misses", "samples_straight"),
                "lookahead_batches": job["lookahead_batches"],
                "lookahead_s": job["lookahead_batches"] * job["interval_s"],
                "waits": rates(_waited(old), _waited(job)),
                "failed": job["samples_failed"],
                "usd": job["usd"],
            }
        )
    jobs.sort(key=lambda job: -(job["images_per_s"] or 0))
    functions = []
    for number, executor in enumerate(after["executors"]):  # by position, since names may repeat
        old = next(iter(before["executors"][number : number + 1]), {})
        functions.append(
            {
                "name": executor["name"],
                "capacity": executor["capacity"],
                "slots": executor["concurrency"],
                "in_flight": executor["in_flight"],
                "samples_per_s": grown(old, executor, "samples"),
                "ended": _ended(executor),
                "ended_per_s": rates(_ended(old), _ended(executor)),
                "problem": executor["trouble"],
            }
        )
    cache = after["cache"]
    return {
        "version": after["coordinating"]["version"],
        "over_s": over_s,
        "images_per_s": _sum([job["images_per_s"] for job in jobs]) if over_s > 0 else None,
        "waits": {
            cause: _sum([job["waits"].get(cause) for job in jobs])
            for cause in sorted({cause for job in jobs for cause in job["waits"]})
        },
        "jobs": jobs,
        "functions": functions,
        "requests": {
            "in_flight": cache["total_requests_in_flight"],
            "slots": cache["concurrency"],
        },
        "cache": cache,
        "lines": cache_lines(cache),
        "warned": after["warned"][::-1],
    }


def _waited(job: Mapping[str, Any]) -> dict[str, float]:
    return {stall["cause"]: stall["wait_s"] for stall in job.get("stall_causes", ())}


def _ended(executor: Mapping[str, Any]) -> dict[str, float]:
    return {entry["outcome"]: entry["requests"] for entry in executor.get("ended", ())}


def _sum(rates: Sequence[float | None]) -> float:
    return sum(rate or 0.0 for rate in rates)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    add = parser.add_argument
    add_coordinator(parser)
    add("--once", action="store_true", help="show the view once, with rates over one second")
    add("--json", action="store_true", help="print a line of JSON per poll")
    add(
        "--web", type=int, metavar="PORT", help="serve a page on this port of 127.0.0.1 (0 picks a free port)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Poll and show the view until Ctrl-C is pressed."""
    from superdl.sampler.rpc import Client, checked_address

    web = arguments.web is not None
    if web and (arguments.once or arguments.json):
        raise ConfigError("--web cannot be combined with --once or --json")
    client = Client(checked_address(coordinator_of(arguments, "top"), "--coordinator"))
    once = arguments.once or not (arguments.json or web or sys.stdout.isatty())
    pause, interrupted = threading.Event(), False
    with client.hold():
        poller = Poller(client, str if arguments.json else shown, _INTERVAL_S if once else WINDOW_S)
        try:
            if once:
                pause.wait(_INTERVAL_S)
                poller.poll()
            with _shown_as(arguments, poller, once=once) as show:
                show(poller.view)
                while not once:
                    pause.wait(_INTERVAL_S)
                    show(poller.poll())
        except KeyboardInterrupt:  # the usual way to stop, except with --once
            interrupted = True
    if once and interrupted:
        raise KeyboardInterrupt
    return 1 if once and poller.view["unreachable"] else 0


@contextmanager
def _shown_as(
    arguments: argparse.Namespace, poller: Poller, *, once: bool
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    if arguments.web is not None:
        from superdl.top.web import Page

        with closing(Page(arguments.web, poller.late_batches)) as page:
            sys.stdout.write(f"superdl top: {page.url} (press Ctrl-C to stop)\n")
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
