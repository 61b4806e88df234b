"""Generates the tables in docs/monitoring.md and Grafana's dashboard.

With ``--check`` it only checks that the files are up to date. Exit codes: 0 fine, 1 a file is out
of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from superdl.coordinator.server.metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "monitoring.md"
ALERTS = ROOT / "infra" / "monitoring" / "alerts.yaml"
DASHBOARD = ROOT / "infra" / "monitoring" / "dashboard.json"

_TABLE = re.compile(r"(<!-- (metrics|alerts) -->\n).*?(<!-- end -->)", re.DOTALL)
_LABEL = re.compile(r"\{\{ \$(?:labels\.)?(\w+) \}\}")
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
# A panel's title and unit, then its lines: legend and expression.
_PANELS = """
Samples read [ops]
    {{job_name}}: sum by (job_name) (rate(super_samples_read_total[@]))
Where they lay [ops]
    {{place}}: sum by (place) (rate(super_samples_read_total[@]))
Waiting, by cause [s]
    {{cause}}: sum by (cause) (rate(super_wait_seconds_total[@])) > 0
Batches stalled, by cause [ops]
    {{cause}}: sum by (cause) (rate(super_stalls_total[@])) > 0
Look-ahead [s]
    {{job_name}}: super_lookahead_seconds
Look-ahead in batches [none]
    {{job_name}}: super_lookahead_batches
Requests, by outcome [ops]
    {{executor}} {{outcome}}: sum by (executor, outcome) (rate(super_requests_total[@])) > 0
Concurrency [none]
    {{executor}} wanted: super_concurrency_wanted
    {{executor}} had: super_concurrency_had
    {{executor}} in flight: super_requests_in_flight
Retries, hedges, failed samples [ops]
    retries: sum(rate(super_retries_total[@]))
    hedges: sum(rate(super_hedges_total[@]))
    failed: sum(rate(super_samples_made_total{way="failed"}[@]))
Seconds of functions [s]
    {{part}}: sum by (part) (rate(super_function_seconds_total[@]))
    cold: sum(rate(super_cold_start_seconds_total[@]))
How samples are made [ops]
    {{way}}: sum by (way) (rate(super_samples_made_total[@]))
Bytes [Bps]
    source: sum(rate(super_source_bytes_total[@]))
    into the cache: sum(rate(super_record_bytes_total[@]))
    out of it: sum(rate(super_read_bytes_total[@]))
Cache [bytes]
    budget: super_cache_budget_bytes
    records: super_cache_resident_bytes
    needed: super_cache_needed_bytes
Cache nodes [percentunit]
    memory of the fullest: super_cache_fullest_node_ratio
    engine of the busiest: super_cache_busiest_node_ratio
Dropped, and produced again [ops]
    dropped: rate(super_cache_dropped_samples_total[@])
    again: rate(super_cache_reproduced_samples_total[@])
    thrash: super_cache_thrashing
Store [bytes]
    packs: super_store_used_bytes
    room: super_store_room_bytes > 0
Dollars an hour [currencyUSD]
    {{kind}}: 3600 * sum by (kind) (rate(super_usd_total[@])) > 0
Dollars, by job [currencyUSD]
    {{job_name}}: super_job_usd
Spending, troubles [none]
    cap (1 near, 2 reached): super_spending_limited
    {{executor}}: super_executor_trouble
    store: super_store_trouble
    cache: super_cache_trouble
    team {{team}} stopped: super_team_stopped
Jobs and ranks [none]
    jobs {{state}}: super_jobs
    ranks {{state}}: super_ranks
Warnings [ops]
    {{part}}: sum by (part) (rate(super_warnings_total[@])) > 0
Listings [none]
    sources: super_listings
    samples found: super_listing_samples
Calls, 99 of 100 [s]
    {{method}}: histogram_quantile(0.99, sum by (method, le) (rate(super_call_seconds_bucket[@])))
"""


def files() -> dict[Path, str]:
    """Return the expected content of each file."""
    rows = [f"| `{metric.name}` | {', '.join(metric.labels)} | {metric.help} |\n" for metric in METRICS]
    metrics = "".join(["| metric | labels | what it says |\n|---|---|---|\n", *rows])
    tables = {"metrics": metrics, "alerts": _alerts()}
    page = PAGE.read_text(encoding="utf-8")
    return {
        PAGE: _TABLE.sub(lambda found: f"{found[1]}{tables[found[2]]}{found[3]}", page),
        DASHBOARD: _dashboard(),
    }


def alerts() -> list[dict[str, Any]]:
    """Return Prometheus's rules."""
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def panels() -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return title and unit of each panel, with its legends and expressions."""
    specs: list[tuple[str, str, list[tuple[str, str]]]] = []
    for line in _PANELS.strip().splitlines():
        if line.startswith(" "):
            # Grafana fills in the interval of rates.
            legend, _, expr = line.strip().partition(": ")
            specs[-1][2].append((legend, expr.replace("[@]", "[$__rate_interval]")))
        else:
            title, _, unit = line[:-1].partition(" [")
            specs.append((title, unit, []))
    return specs


def _alerts() -> str:
    rows = []
    for rule in alerts():
        annotations = {name: _LABEL.sub(r"*\1*", text) for name, text in rule["annotations"].items()}
        rows.append(f"| `{rule['alert']}` | {annotations['summary']} | {annotations['description']} |\n")
    return "".join(["| alert | what it says | what to do |\n|---|---|---|\n", *rows])


def _dashboard() -> str:
    """Return the dashboard in Grafana's import format, a panel per line."""
    source = {"type": "prometheus", "uid": "${source}"}
    head: dict[str, Any] = {
        "title": "SUPER",
        "uid": "superdl",
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},
    }
    panel_lines = []
    for index, (title, unit, series) in enumerate(panels()):
        row, column = divmod(index, _COLUMNS)
        panel = {
            "id": index + 1,
            "type": "timeseries",
            "title": title,
            "datasource": source,
            "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
            "fieldConfig": {"defaults": {"unit": unit, "custom": {"fillOpacity": 10}}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + number), "datasource": source, "expr": expr, "legendFormat": legend}
                for number, (legend, expr) in enumerate(series)
            ],
        }
        panel_lines.append(json.dumps(panel))
    body = ",\n".join(panel_lines)
    return f'{json.dumps(head)[:-1]}, "panels": [\n{body}\n]}}\n'


def main(argv: list[str] | None = None) -> int:
    """Write, or with ``--check`` compare; return the exit code."""
    parser = argparse.ArgumentParser(description="Write what follows from the list of metrics, or check it.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is old")
    arguments = parser.parse_args(argv)
    texts = files()
    outdated = [path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in outdated:
        if arguments.check:
            sys.stderr.write(f"{path.relative_to(ROOT)} is old: python -m tools.monitoring\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[path], encoding="utf-8")
    return int(arguments.check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main())
