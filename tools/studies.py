"""Run the studies' quick variants, record the figures, and write them into the studies' pages.

``python -m tools.studies [NAME ...]`` compares the arms of the named studies (by default, all studies),
records the figures of each repeat in ``docs/experiments/studies.json``, and writes the pages. Comments
mark the generated parts of a page:

- ``<!-- figures of NAME -->`` to ``<!-- end -->`` is the table of a study's arms, or of all studies if it
  starts with ``<!-- figures -->``;
- ``<!-- =NAME FIGURE ARM -->1.23<!-- -->`` is one figure or, with ``ARM/ARM``, the ratio of two.

Exit codes: 0 success, 1 a study failed or a page is out of date.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.experiments.comparing.comparison import read_comparison
from superdl.experiments.comparing.figures import FIGURES, Spread
from superdl.experiments.comparing.show import spread_cell
from superdl.experiments.reporting.page import number
from superdl.super_wire.display import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from superdl.experiments.comparing.comparison import Comparison

STUDIES = (
    "resnet18_tiny_imagenet",
    "mnist_split",
    "resnet50_heterogeneous",
    "resnet18_ddp_finetune",
    "vit_cifar10",
    "hpo_sharing",
)
PAGES = Path(__file__).resolve().parent.parent / "docs" / "experiments"
OVERVIEW = PAGES.parent / "performance.md"
FIGURES_FILE = PAGES / "studies.json"

_TABLE = re.compile(r"(<!-- figures(?: of (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
_CELL = re.compile(r"(<!-- =(\w+) (\w+) (\w+)(?:/(\w+))? -->).*?(<!-- -->)", re.DOTALL)
# The figures in the table of all studies.
_OF_ALL = ("step_ms", "wait_percent", "cpu_s", "decodes_per_image", "accuracy")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the studies and write the pages. Return the exit code."""
    parser = argparse.ArgumentParser(description="Run the studies' quick variants and write their pages.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"studies to run: {', '.join(STUDIES)} (default: all)"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--pages", action="store_true", help="do not run studies; only write the pages")
    group.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if a page is out of date"
    )
    arguments = parser.parse_args(argv)
    if unknown := sorted(set(arguments.names) - set(STUDIES)):
        parser.error(f"no such study: {', '.join(unknown)}; choose from {', '.join(STUDIES)}")
    if arguments.names and (arguments.pages or arguments.check):
        parser.error("names select studies to run, so they cannot be combined with --pages or --check")
    studies: dict[str, Any] = json.loads(FIGURES_FILE.read_text(encoding="utf-8"))
    failed = []
    if not arguments.pages and not arguments.check:
        for name in arguments.names or STUDIES:
            measured = _run(name)
            if measured is None:
                failed.append(name)
                continue
            studies[name] = measured
            # In the order of STUDIES, regardless of which ran first.
            studies = {key: studies[key] for key in STUDIES if key in studies}
            FIGURES_FILE.write_text(json.dumps(studies, indent=1) + "\n", encoding="utf-8")
    if failed:
        sys.stderr.write(f"failed, so their pages keep the previous figures: {', '.join(failed)}\n")
    return 1 if _write_pages(studies, changing=not arguments.check) or failed else 0


def _run(name: str) -> dict[str, Any] | None:
    """Compare a study's arms, using the command that users run. Return ``None`` if the command fails."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as output:
        command = ("compare", name, "--quick", "--set", f"output={output}")
        began = time.time()
        code = subprocess.run(
            [sys.executable, "-m", "superdl.main", *command], check=False, env=environment
        ).returncode
        if code:
            return None
        (directory,) = Path(output).glob("*-compare-*")
        return figures_of(read_comparison(directory), time.strftime("%Y-%m-%d", time.gmtime(began)))


def figures_of(comparison: Comparison, date: str) -> dict[str, Any]:
    """Return the record of a comparison: the machine, and each arm's figures by repeat."""
    machine = comparison.environment
    arms = {}
    for arm in comparison.arms:
        spreads = {figure.key: comparison.spreads(figure.key)[arm.name] for figure in FIGURES}
        arms[arm.name] = {
            key: [float(f"{value:.4g}") for value in spread.values]
            for key, spread in spreads.items()
            if spread
        }
    return {
        "date": date,
        "took_s": round(comparison.took_s),
        "machine": f"{len(os.sched_getaffinity(0))} cores of {machine.get('cpu', 'an unknown CPU')}, "
        f"{machine.get('device_name') or 'no GPU'}, torch {machine['packages']['torch']}",
        "warmup_epochs": comparison.warmup_epochs,
        "arms": arms,
    }


def _write_pages(studies: Mapping[str, Any], *, changing: bool) -> bool:
    """Write all pages or, unless ``changing``, report the outdated ones. Return whether any were reported."""
    outdated = False
    for page in (OVERVIEW, *sorted(PAGES.glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        updated = regenerated(text, studies)
        if updated != text and changing:
            page.write_text(updated, encoding="utf-8")
        elif updated != text:
            sys.stderr.write(
                f"{page.name} has different figures from {FIGURES_FILE.name}: update it with --pages\n"
            )
            outdated = True
    return outdated


def regenerated(page: str, studies: Mapping[str, Any]) -> str:
    """Return the page with its generated parts updated from ``studies``."""
    page = _TABLE.sub(lambda at: at[1] + (_study(studies[at[2]]) if at[2] else _all(studies)) + at[3], page)
    return _CELL.sub(lambda at: f"{at[1]}{_cell(studies[at[2]]['arms'], *at.group(3, 4, 5))}{at[6]}", page)


def _cell(arms: Mapping[str, Any], figure: str, arm: str, other: str | None) -> str:
    value = Spread(tuple(arms[arm][figure])).median
    return number(value / Spread(tuple(arms[other][figure])).median) if other else number(value)


def _study(study: Mapping[str, Any]) -> str:
    arms = study["arms"]
    rows = [
        (figure.title, figure.unit, *(_values(arm, figure.key) for arm in arms.values()))
        for figure in FIGURES
        if any(figure.key in arm for arm in arms.values())
    ]
    heads = ("figure", "unit", *(f"`{name}`" for name in arms))
    warmup = (
        f"after {counted(study['warmup_epochs'], 'epoch')} of warm-up"
        if study["warmup_epochs"]
        else "of all epochs"
    )
    repeats = max(len(values) for arm in arms.values() for values in arm.values())
    return (
        f"{_markdown(heads, rows, 2)}\n{study['date']}, {study['machine']}. Medians of {repeats} repeats "
        f"(least to most); rates {warmup}. {study['took_s']} s in all.\n"
    )


def _all(studies: Mapping[str, Any]) -> str:
    shown = [figure for figure in FIGURES if figure.key in _OF_ALL]
    rows = [
        (
            f"[`{name}`](experiments/{name}.md)",
            f"`{arm}`",
            *(_values(figures, figure.key, median=True) for figure in shown),
        )
        for name, study in studies.items()
        for arm, figures in study["arms"].items()
    ]
    heads = ("study", "arm", *(", ".join(filter(None, (figure.title, figure.unit))) for figure in shown))
    took_s = sum(study["took_s"] for study in studies.values())
    return f"{_markdown(heads, rows, 2)}\nMedians; {took_s / 60:.0f} minutes in all.\n"


def _values(arm: Mapping[str, Any], figure: str, *, median: bool = False) -> str:
    spread = Spread(tuple(arm[figure])) if figure in arm else None
    if spread is not None and median:
        return number(spread.median)
    return spread_cell(spread, " (", ")")


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> str:
    rules = ["---"] * text_columns + ["--:"] * (len(heads) - text_columns)
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, rules, *rows))


if __name__ == "__main__":
    sys.exit(main())
