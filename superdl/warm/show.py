"""What people see of warming: the estimate before, a bar or lines meanwhile, the report after."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from superdl.warm.report import Ended

if TYPE_CHECKING:
    from rich.console import Console

    from superdl.warm.estimate import Estimate
    from superdl.warm.report import WarmReport

__all__ = ["WarmProgress", "print_estimate", "print_report"]

_LINE_EVERY_S = 10.0
_MIB = 2**20

_WORDS = {
    Ended.ALL: "all samples were gone through",
    Ended.FULL: "the cache is full: more would drop what is in it",
    Ended.MAX_USD: "stopped at --max-usd",
    Ended.SPENDING_CAP: "the coordinator's own cap on spending is reached",
    Ended.STALLED: "given up",
    Ended.TIMEOUT: "stopped at --timeout",
    Ended.INTERRUPTED: "interrupted",
}

_EARLY = (Ended.STALLED, Ended.TIMEOUT, Ended.INTERRUPTED)


def print_estimate(estimate: Estimate, console: Console) -> None:
    """What is to be expected, one thing a line."""
    guess = " (guessed: the recipe does not say it)" if estimate.guessed else ""
    share = estimate.cache_bytes / estimate.budget_bytes if estimate.budget_bytes else 0.0
    console.print(f"samples: {estimate.samples:,}, of {estimate.record_bytes:,} bytes each{guess}")
    room = f"{_size(estimate.free_bytes)} of {_size(estimate.budget_bytes)} are free"
    if estimate.fits < estimate.samples:
        console.print(
            f"cache: {estimate.fits:,} of {estimate.samples:,} samples fit, beside what of this source is "
            f"there already: {room}",
            soft_wrap=True,
        )
    else:
        console.print(f"cache: {_size(estimate.cache_bytes)}, {share:.0%} of its budget; {room}")
    console.print(
        f"work, if none of them is there: {estimate.invocations:,} invocations, {estimate.gets:,} GETs"
    )
    for name, usd in estimate.usd.items():
        work = f", {estimate.gb_s[name]:,.0f} GB-s" if estimate.gb_s[name] else ""
        console.print(
            f"cost with {name}: {usd:.4f} USD{work}, at the coordinator's prices and at rates for images of "
            "110 KB (docs/cost.md)",
            soft_wrap=True,
        )


def print_report(report: WarmReport, console: Console) -> None:
    """What was done."""
    rate = report.warm / report.seconds if report.seconds else 0.0
    console.print(f"{_WORDS[report.ended]}{': ' + report.why if report.why else ''}", soft_wrap=True)
    seen = "were seen" if report.ended in _EARLY else "are"  # what else was made was not looked at
    console.print(
        f"{report.warm:,} of {report.samples:,} samples {seen} in the cache ({_size(report.record_bytes)}): "
        f"{report.hits:,} were there, {report.produced:,} were made; {report.failed:,} failed",
        soft_wrap=True,
    )
    console.print(
        f"{report.usd:.4f} USD, {report.invocations:,} invocations, {report.gb_s:,.1f} GB-s, "
        f"{report.source_requests:,} GETs; {rate:,.0f} samples/s in {report.seconds:.1f} s",
        soft_wrap=True,
    )
    if report.dropped:
        console.print(
            f"{report.dropped:,} samples were dropped meanwhile: others use this cache beyond its budget",
            soft_wrap=True,
        )
    if report.lost:
        console.print(
            f"{report.lost:,} samples were seen in the cache and are not there any more: it was emptied, or "
            "others' work dropped them; warm again",
            soft_wrap=True,
        )
    for key, reason in report.failures:
        console.print(f"  {key}: {reason}", soft_wrap=True)
    if report.failed > len(report.failures):
        console.print(f"  and {report.failed - len(report.failures):,} more")


class WarmProgress:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, samples: int) -> None:
        """Draw on ``console``."""
        self._console = console
        self._begin_s = self._next_s = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("warming"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[phrase]}"),
                console=console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
                transient=True,
            )
            self._task = self._bar.add_task("", total=samples, phrase="")
            self._bar.start()

    def tell(self, report: WarmReport) -> None:
        """Show how far it is."""
        now_s = time.monotonic()
        rate = report.warm / max(now_s - self._begin_s, 1e-9)
        phrase = f"{rate:,.0f}/s  {report.produced:,} made  {report.failed:,} failed  {report.usd:.4f} USD"
        if self._bar is not None:
            self._bar.update(self._task, completed=report.warm + report.failed, phrase=phrase, refresh=True)
        elif now_s >= self._next_s:
            self._next_s = now_s + _LINE_EVERY_S
            self._console.print(
                f"{report.warm + report.failed:,} of {report.samples:,}  {phrase}", highlight=False
            )

    def close(self) -> None:
        """Give the terminal back."""
        if self._bar is not None:
            self._bar.stop()


def _size(count: float) -> str:
    return f"{count / _MIB:,.1f} MiB" if count < 1024 * _MIB else f"{count / 2**30:,.1f} GiB"
