"""The terminal rendering of a view."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

_JOBS_SHOWN = 20
_LEAST_WAIT = 0.005  # seconds per second


# Text from other programs is wrapped in Text, which is never parsed as markup.
def rendered(view: Mapping[str, Any]) -> RenderableType:
    """Return the view in a form that rich prints as wide as the terminal."""
    head = f"superdl {view['version']} at {view['coordinator']}  {time.strftime('%H:%M:%S')}"
    lines: list[RenderableType] = [Text(head, style="bold")]
    if outage := view["unreachable"]:
        since = time.strftime("%H:%M:%S", time.localtime(outage["since_s"]))
        lines.append(Text(f"not reachable since {since}: {outage['why']}", style="bold red"))
    jobs = view["jobs"]
    waiting = "no reader is waiting"
    if waits := _waits(view["waits"]):
        waiting = f"readers wait for {waits}".replace("s/s", "s per second")
    lines.append(Text(f"{_rate(view['images_per_s'])} images/s; {waiting}"))
    lines += [Text(), _jobs(jobs[:_JOBS_SHOWN])]
    if len(jobs) > _JOBS_SHOWN:
        lines.append(Text(f"and {len(jobs) - _JOBS_SHOWN:,} more jobs with lower throughput", style="dim"))
    if not jobs:
        lines.append(Text("no open jobs: a job is open while its sampler exists"))
    lines += [Text(), _functions(view["functions"]), Text()]
    lines += [Text(line, style="red" if line.startswith(" ") else "") for line in view["lines"]]
    if view["warned"]:
        lines += [Text(), Text("warnings of the last 15 minutes", style="bold dim")]
        lines += [_warned(warning) for warning in view["warned"]]
    return Group(*lines)


def _jobs(jobs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("job", "ranks", "images/s", "ahead", "waits for", "epoch, batch", "USD")
    for job in jobs:
        lapsed = f" ({job['lapsed_ranks']} silent)" if job["lapsed_ranks"] else ""
        table.add_row(
            Text.assemble(job["source"], (f"\n  {job['job']}", "dim")),
            Text(f"{job['ranks']}{lapsed}"),
            Text(_rate(job["images_per_s"])),
            Text(f"{job['lookahead_s']:.1f} s, {job['lookahead_batches']}"),
            Text(_waits(job["waits"]) or "nothing"),
            Text(f"{job['epoch']}, {job['position']}"),
            Text(f"{job['usd']:.4f}"),
        )
    return table


def _functions(functions: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("executor", "slots", "in flight", "samples/s", "finished requests (per second)")
    for function in functions:
        ended = ", ".join(
            f"{outcome.replace('_', ' ')} {count:,} ({_rate(function['ended_per_s'][outcome])})"
            for outcome, count in function["ended"].items()
        )
        table.add_row(
            Text(function["name"]),
            Text(f"{function['slots']:,} of {function['capacity']:,}"),
            Text(f"{function['in_flight']:,}"),
            Text(_rate(function["samples_per_s"])),
            Text(ended or "none"),
        )
        if function["problem"]:
            table.add_row(Text(f"  {function['problem']}", style="red"))
    return table


def _warned(warning: Mapping[str, Any]) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(warning["at_s"]))
    times = f" (latest of {warning['times']:,})" if warning["times"] > 1 else ""
    return Text(f"{at} {warning['text']}{times}", style="" if warning["level"] == "WARNING" else "red")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold dim", expand=True)
    for number, name in enumerate(columns):
        if number:
            table.add_column(name, no_wrap=name not in {"waits for", "finished requests (per second)"})
        else:
            table.add_column(name, ratio=1, no_wrap=True, overflow="ellipsis", min_width=12)
    return table


def _waits(waits: Mapping[str, float | None]) -> str:
    """Return the causes of waiting with their rates, in seconds per second over all readers."""
    waiting = sorted(
        ((rate, cause) for cause, rate in waits.items() if (rate or 0) >= _LEAST_WAIT), reverse=True
    )
    return ", ".join(f"{cause} ({rate:.2f} s/s)" for rate, cause in waiting)


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.1f}" if rate < 10 else f"{rate:,.0f}"  # noqa: PLR2004  # two significant digits
