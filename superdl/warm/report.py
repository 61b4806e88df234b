"""What bounds a warming, what it did by the coordinator's count, and what people see of it."""

from __future__ import annotations

import enum
import logging
import math
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, TextColumn

from superdl.super_wire.errors import CacheError, CoordinatorError

if TYPE_CHECKING:
    from rich.console import Console

    from superdl.sampler import SuperSampler
    from superdl.warm.estimate import Estimate

__all__ = ["Counted", "Ended", "Limits", "WarmProgress", "WarmReport", "print_estimate", "print_report"]

_LOG = logging.getLogger(__name__)

_LINE_EVERY_S = 10.0
_MIB = 2**20
_COUNTED = ("samples_produced", "usd", "gb_s", "invocations", "source_requests", "dropped_samples")
_GROWING = ("samples_produced", "invocations", "source_requests", "dropped_samples")


class Ended(enum.StrEnum):
    """Why it ended."""

    ALL = "all"
    FULL = "full"
    MAX_USD = "max_usd"
    SPENDING_CAP = "spending_cap"
    STALLED = "stalled"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


_WORDS = {
    Ended.ALL: "all samples were gone through",
    Ended.FULL: "the cache is full: more would drop what is in it",
    Ended.MAX_USD: "stopped at --max-usd",
    Ended.SPENDING_CAP: "the coordinator's own cap on spending is reached",
    Ended.STALLED: "given up",
    Ended.TIMEOUT: "stopped at --timeout",
    Ended.INTERRUPTED: "interrupted",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds it: US dollars, seconds in which a batch gets no further, seconds in all."""

    max_usd: float = math.inf
    patience_s: float = 120.0
    timeout_s: float = math.inf


@dataclass(slots=True)
class WarmReport:
    """What was done. ``warm`` samples are in the cache, of which ``produced`` were made for this job.

    ``record_bytes`` are those of all that are warm; ``dropped`` are anybody's samples that the cache gave up
    meanwhile. ``failures`` have key and reason of the first that failed.
    """

    samples: int
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
        return not self.failed and self.ended in {Ended.ALL, Ended.FULL}

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"hits": self.hits}


class Counted:
    """What the coordinator has counted for the job: counters begin at 0 again where it lost its memory.

    Attributes:
        known: whether the last look was answered.
        free_bytes: of the cache's budget, at the last look.
        budget_bytes: the budget.
        in_flight: samples that functions work on, for all jobs.
        working: requests that functions work on, for this one.
    """

    def __init__(self, sampler: SuperSampler) -> None:
        self._sampler = sampler
        self._latest = self._before = dict.fromkeys(_COUNTED, 0.0)
        self._dropped_at_first: float | None = None
        self._looked_s = -math.inf
        self.known = False
        self.free_bytes = self.budget_bytes = self.in_flight = self.working = 0

    def age_s(self) -> float:
        """Seconds since the last look."""
        return time.monotonic() - self._looked_s

    def look(self, report: WarmReport) -> bool:
        """Ask, and write the sums into the report; a coordinator that does not answer is no news.

        Whether the coordinator has lost its memory since the look before.
        """
        try:
            stats = self._sampler.job_stats()
        except (CacheError, CoordinatorError) as error:  # something may be restarting; waiting is bounded
            _LOG.debug("no statistics: %s", error)
            self.known, self.free_bytes = False, 0
            return False
        finally:
            self._looked_s = time.monotonic()
        self.known, self.free_bytes, self.budget_bytes = True, stats.free_bytes, stats.budget_bytes
        self.in_flight, self.working = stats.in_flight_samples, stats.requests_in_flight
        now = {name: float(getattr(stats, name)) for name in _COUNTED}
        if self._dropped_at_first is None:
            self._dropped_at_first = now["dropped_samples"]
        # A share of the costs may get less while others read; what only grows tells of a new process.
        forgot = any(now[name] < self._latest[name] for name in _GROWING)
        if forgot:
            self._before = {name: self._before[name] + self._latest[name] for name in _COUNTED}
        self._latest = now
        sums = {name: self._before[name] + now[name] for name in _COUNTED}
        report.usd, report.gb_s = sums["usd"], sums["gb_s"]
        report.produced, report.invocations = int(sums["samples_produced"]), int(sums["invocations"])
        report.source_requests = int(sums["source_requests"])
        report.dropped = max(0, int(sums["dropped_samples"] - self._dropped_at_first))
        return forgot


def print_estimate(estimate: Estimate, console: Console) -> None:
    """What is to be expected, one thing a line."""
    guess = " (guessed: the recipe does not say it)" if estimate.record_bytes_guessed else ""
    console.print(f"samples: {estimate.samples:,}, of {estimate.record_bytes:,} bytes each{guess}")
    fits = _size(estimate.cache_bytes)
    if estimate.fits < estimate.samples:
        fits = f"{estimate.fits:,} of {estimate.samples:,} samples fit, beside what of them is there already"
    console.print(f"cache: {fits}; {_size(estimate.free_bytes)} of {_size(estimate.budget_bytes)} are free")
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
        f"{report.warm:,} of {report.samples:,} samples were seen in the cache "
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
