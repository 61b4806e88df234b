"""Generate the tables in docs/monitoring.md and the Grafana dashboard.

With ``--check``, only check whether the files are up to date. Exit codes: 0 success, 1 a file is out
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
PANELS = ROOT / "infra" / "monitoring" / "panels.yaml"
DASHBOARD = ROOT / "infra" / "monitoring" / "dashboard.json"

_TABLE = re.compile(r"(<!-- (metrics|alerts) -->\n).*?(<!-- end -->)", re.DOTALL)
_LABEL = re.compile(r"\{\{ \$(?:labels\.)?(\w+) \}\}")
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


def files() -> dict[Path, str]:
    """Return the expected content of each file."""
    rows = [f"| `{metric.name}` | {', '.join(metric.labels)} | {metric.help} |\n" for metric in METRICS]
    metrics = "".join(["| metric | labels | what it says |\n|---|---|---|\n", *rows])
    rows = []
    for rule in alerts():
        annotations = {name: _LABEL.sub(r"*\1*", text) for name, text in rule["annotations"].items()}
        rows.append(f"| `{rule['alert']}` | {annotations['summary']} | {annotations['description']} |\n")
    heads = "| alert | what it says | what to do |\n|---|---|---|\n"
    tables = {"metrics": metrics, "alerts": "".join([heads, *rows])}
    page = PAGE.read_text(encoding="utf-8")
    return {
        PAGE: _TABLE.sub(lambda match: f"{match[1]}{tables[match[2]]}{match[3]}", page),
        DASHBOARD: _dashboard(),
    }


def alerts() -> list[dict[str, Any]]:
    """Return the Prometheus alert rules."""
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def panels() -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return the title and unit of each panel, with its legends and expressions."""
    # Grafana replaces the interval of rates.
    text = PANELS.read_text(encoding="utf-8").replace("[@]", "[$__rate_interval]")
    return [(panel["title"], panel["unit"], list(panel["series"].items())) for panel in yaml.safe_load(text)]


def _dashboard() -> str:
    """Return the dashboard in Grafana's import format, with one panel per line."""
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
    """Write the files or, with ``--check``, compare them. Return the exit code."""
    parser = argparse.ArgumentParser(description="Write the files generated from the list of metrics.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if a file is out of date"
    )
    arguments = parser.parse_args(argv)
    texts = files()
    outdated = [path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in outdated:
        if arguments.check:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date: run python -m tools.monitoring\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[path], encoding="utf-8")
    return int(arguments.check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main())
