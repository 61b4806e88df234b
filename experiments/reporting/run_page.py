"""The page of a run, ``report.html``: made from the files of its directory, and of nothing else.

So ``superdl report DIRECTORY`` can make it at any time, also of a run that was killed. What it says beside
the figures is in ``templates/run.html``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.experiments.reporting.page import PAGE_NAME, Table, facts_table, render, write_page
from superdl.experiments.reporting.quantities import count, size
from superdl.experiments.reporting.run_files import RunFiles, read_run
from superdl.experiments.reporting.run_findings import findings
from superdl.experiments.reporting.run_plots import run_plots
from superdl.experiments.reporting.run_tables import run_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["run_page", "write_run_page"]


def write_run_page(directory: Path) -> Path:
    """Make the page of a run in its directory; returns where it is.

    Raises:
        ConfigError: the directory is of no run.

    """
    path = directory / PAGE_NAME
    write_page(run_page(read_run(directory)), path)
    return path


def run_page(run: RunFiles) -> str:
    """The page of a run as HTML."""
    begun = run.known.get("started_at") or (run.manifest or {}).get("started_at") or "at a time not known"
    settings = run.known.get("loader_settings") or {}
    loader = (run.spec.get("loader") or {}).get("kind", "")
    return render(
        "run.html",
        title=f"Run {run.name}: {run.status}",
        subtitle=f"{_with(run)}begun {begun}",
        run=run,
        findings=findings(run),
        notes=(*run.known.get("notes", ()), *run.troubles),
        tables=run_tables(run),
        plots=run_plots(run),
        bill=run.known.get("bill"),
        settings=facts_table(f"Settings of loader {loader}", settings) if settings else None,
        spec_lines="\n".join(_leaves(run.spec)),
        machine=_machine(run.manifest) if run.manifest else None,
        images={split: count(run.known.get(f"{split}_samples")) for split in ("train", "val")},
    )


def _with(run: RunFiles) -> str:
    """The loader, how its functions ran, and what trained, in a word or two each."""
    loader = (run.spec.get("loader") or {}).get("kind")
    executor = run.known.get("executor")
    device = ((run.manifest or {}).get("software") or {}).get("device")
    words = [f"loader {loader}"] if loader else []
    words += [f"functions {executor}"] if executor else []
    words += [f"device {device}"] if device else []
    ranks, strategy, precision = (run.known.get(name) for name in ("ranks", "strategy", "precision"))
    words += [f"{ranks} ranks by {strategy}"] if (ranks or 1) > 1 else []
    words += [f"computing in {precision}"] if precision else []
    return "".join(f"{word}, " for word in words)


def _machine(manifest: Mapping[str, Any]) -> Table:
    """What the run ran on, and with which versions."""
    hardware, software = manifest.get("hardware") or {}, manifest.get("software") or {}
    packages = software.get("packages") or {}
    version = packages.get("superdl") or "of a version not known"
    commit = manifest.get("commit")
    changed = ", with changes" if manifest.get("dirty") else ""
    gpus = [f"{gpu['name']} ({size(gpu['memory_bytes'])})" for gpu in hardware.get("gpus") or ()]
    return facts_table(
        "Machine and versions, by manifest.json",
        {
            "SUPER": f"{version}, commit {commit}{changed}" if commit else version,
            "processor": f"{hardware.get('cpu')}, {count(hardware.get('usable_cores'), 'core')} of "
            f"{hardware.get('logical_cores')} usable, {size(hardware.get('memory_bytes'))} of memory",
            "GPUs": ", ".join(gpus) or "none",
            "device": software.get("device"),
            "torch threads": software.get("torch_threads"),
            "Python": f"{software.get('python')} on {software.get('platform')}",
            "packages": ", ".join(f"{name} {version}" for name, version in packages.items() if version),
        },
    )


def _leaves(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every value of a spec by its dotted key, as the command line takes it; empty sections are left out."""
    for name, value in mapping.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={'null' if value is None else value}"
