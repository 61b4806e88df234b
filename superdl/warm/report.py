"""What bounds a warming, what it did by the coordinator's count, and what people see of it."""

from __future__ import annotations

import enum
import math
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, TextColumn

if TYPE_CHECKING:
    from superdl.experiments.console import Console
    from superdl.super_wire.coordinator_pb2 import CacheStats, JobStats
    from superdl.warm.estimate import Estimate

__all__ = ["Counted", "Ended", "Limits", "WarmProgress", "WarmReport", "print_estimate", "print_report"]

_LINE_EVERY_S = 10.0
_MIB = 2**20
_COUNTED = ("samples_produced", "usd", "gb_s", "invocations", "source_requests")


class Ended(enum.StrEnum):
    """Why it ended."""

    ALL = "all"
    FULL = "full"
    MAX_BYTES = "max_bytes"
    MAX_USD = "max_usd"
    SPENDING_CAP = "spending_cap"
    STALLED = "stalled"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


_WORDS = {
    Ended.ALL: "all samples were gone through",
    Ended.FULL: "the cache is full: more would drop what is in it",
    Ended.MAX_BYTES: "stopped at --max-bytes",
    Ended.MAX_USD: "stopped at --max-usd",
    Ended.SPENDING_CAP: "the coordinator's own cap on spending is reached",
    Ended.STALLED: "given up",
    Ended.TIMEOUT: "stopped at --timeout",
    Ended.INTERRUPTED: "interrupted",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds it: bytes in all (0: nothing), US dollars, seconds in which it gets no further, seconds."""

    max_bytes: int = 0
    max_usd: float = math.inf
    patience_s: float = 120.0
    timeout_s: float = math.inf


@dataclass(slots=True)
class WarmReport:
    """What was done. ``warm`` samples are in the cache, or in the store if it went ``to_store``; ``produced``
    were made for this job.

    ``record_bytes`` is what all that are warm take there; ``dropped`` are anybody's samples that the cache
    gave up meanwhile. ``failures`` have key and reason of the first that failed.
    """

    samples: int
    to_store: bool = False
    ended: Ended = Ended.ALL
    warm: int = 0
    failed: int = 0
    produced: int = 0
    usd: float = 0.0
    gb_s: float = 0.0
    invocations: int = 0
    source_requests: int = 0
    seconds: float = 0.0
    record_bytes: int = 0
    dropped: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    why: str = ""
    """More words, where it did not end well."""

    @property
    def hits(self) -> int:
        """Samples that were there already, or were made for others meanwhile."""
        return max(0, self.warm - self.produced)

    @property
    def done(self) -> bool:
        """Whether all that was to be warmed and fits is warm."""
        return not self.failed and self.ended in {Ended.ALL, Ended.FULL, Ended.MAX_BYTES}

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"hits": self.hits}


class Counted:
    """What the coordinator has counted for the job: it begins at 0 again where that lost its memory."""

    def __init__(self) -> None:
        self._latest = self._before = dict.fromkeys(_COUNTED, 0.0)
        self._dropped_at_first: float | None = None

    def look(self, job: JobStats, cache: CacheStats, report: WarmReport) -> None:
        """Write the sums into the report."""
        self._latest = {name: float(getattr(job, name)) for name in _COUNTED}
        sums = {name: self._before[name] + self._latest[name] for name in _COUNTED}
        report.usd, report.gb_s = sums["usd"], sums["gb_s"]
        report.produced, report.invocations = int(sums["samples_produced"]), int(sums["invocations"])
        report.source_requests = int(sums["source_requests"])
        if self._dropped_at_first is None:
            self._dropped_at_first = cache.dropped_samples
        report.dropped = max(0, int(cache.dropped_samples - self._dropped_at_first))

    def forget(self) -> None:
        """The job was opened, or opened again."""
        self._before = {name: self._before[name] + self._latest[name] for name in _COUNTED}
        self._latest = dict.fromkeys(_COUNTED, 0.0)
        self._dropped_at_first = None


def print_estimate(estimate: Estimate, console: Console) -> None:
    """What is to be expected, one thing a line."""
    guess = " (guessed: the recipe does not say it)" if estimate.record_bytes_guessed else ""
    console.print(f"samples: {estimate.samples:,}, of {estimate.record_bytes:,} bytes each{guess}")
    fits = _size(estimate.cache_bytes)
    if estimate.fits < estimate.samples:
        fits = f"{estimate.fits:,} of {estimate.samples:,} samples fit, beside what of them is there already"
    room = f"{_size(estimate.free_bytes)} of {_size(estimate.budget_bytes)} are free"
    console.print(f"store: {fits}" if estimate.to_store else f"cache: {fits}; {room}")
    console.print(
        f"work, if none of them is there: {estimate.invocations:,} invocations, {estimate.gets:,} GETs"
    )
    for name, usd in estimate.usd.items():
        console.print(
            f"cost with {name}: {usd:.4f} USD, {estimate.gb_s[name]:,.0f} GB-s, at the coordinator's prices "
            "and at rates for images of 110 KB (docs/cost.md)"
        )


def print_report(report: WarmReport, console: Console) -> None:
    """What was done."""
    rate = report.warm / report.seconds if report.seconds else 0.0
    console.print(f"{_WORDS[report.ended]}{': ' + report.why if report.why else ''}")
    console.print(
        f"{report.warm:,} of {report.samples:,} samples are in the {'store' if report.to_store else 'cache'} "
        f"({_size(report.record_bytes)}): {report.hits:,} were there, {report.produced:,} were made; "
        f"{report.failed:,} failed"
    )
    console.print(
        f"{report.usd:.4f} USD, {report.invocations:,} invocations, {report.gb_s:,.1f} GB-s, "
        f"{report.source_requests:,} GETs; {rate:,.0f} samples/s in {report.seconds:.1f} s"
    )
    if report.dropped:
        console.print(
            f"{report.dropped:,} samples were dropped meanwhile: others use this cache beyond its budget"
        )
    for failure in report.failures:
        console.print(f"  {failure['key']}: {failure['reason']}")
    if report.failed > len(report.failures):
        console.print(f"  and {report.failed - len(report.failures):,} more")


class WarmProgress:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, samples: int) -> None:
        """Draw on ``console``."""
        self._console = console
        self._begin_s = self._next_s = time.monotonic()
        columns = (*Progress.get_default_columns(), TextColumn("{task.fields[phrase]}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("warming", total=samples, phrase="")
        self._bar.start()

    def tell(self, report: WarmReport) -> None:
        """Show how far it is."""
        now_s, done = time.monotonic(), report.warm + report.failed
        rate = report.warm / max(now_s - self._begin_s, 1e-9)
        phrase = f"{rate:,.0f}/s  {report.produced:,} made  {report.failed:,} failed  {report.usd:.4f} USD"
        self._bar.update(self._task, completed=done, phrase=phrase)
        if self._bar.disable and now_s >= self._next_s:
            self._next_s = now_s + _LINE_EVERY_S
            self._console.print(f"{done:,} of {report.samples:,}  {phrase}")

    def close(self) -> None:
        """Give the terminal back."""
        self._bar.stop()


def _size(count: float) -> str:
    return f"{count / _MIB:,.1f} MiB" if count < 1024 * _MIB else f"{count / 2**30:,.1f} GiB"
