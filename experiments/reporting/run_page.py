"""The page of a run, ``report.html``: made from the files of its directory, and of nothing else.

So it can be made anew at any time (``superdl report DIRECTORY``), also of a run that was killed. Reading is
left to `run_files`, the words to `run_words`, tables and charts to `run_tables` and `run_plots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.experiments.reporting.page import Page
from superdl.experiments.reporting.quantities import count, size
from superdl.experiments.reporting.run_files import RunFiles, read_run
from superdl.experiments.reporting.run_plots import (
    cost_chart,
    learning_charts,
    speed_charts,
    stalls_chart,
    step_charts,
    step_times_chart,
    usage_charts,
)
from superdl.experiments.reporting.run_tables import (
    bill_table,
    causes_table,
    data_time_table,
    epoch_cost_table,
    gpus_table,
    passes_table,
    processors_table,
    stalls_table,
    status_table,
    step_times_table,
)
from superdl.experiments.reporting.run_words import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["PAGE_NAME", "run_page", "write_page"]

PAGE_NAME = "report.html"


def write_page(directory: Path) -> Path:
    """Make the page of a run in its directory; returns where it is.

    Raises:
        ConfigError: the directory is of no run.

    """
    path = directory / PAGE_NAME
    run_page(read_run(directory)).write(path)
    return path


def run_page(run: RunFiles) -> Page:
    """The page of a run."""
    begun = run.known.get("started_at") or (run.manifest or {}).get("started_at") or "at a time not known"
    page = Page(f"Run {run.name}: {run.status}", f"{_with(run)}begun {begun}")
    page.points(verdict(run))
    for note in (*run.known.get("notes", ()), *run.troubles):
        page.note(note)
    if run.passes:
        _passes(page, run)
        _time(page, run)
        _stalls(page, run)
    _processors(page, run)
    if run.known.get("bill"):
        _cost(page, run.known["bill"])
    _what_it_was(page, run)
    return page


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


def _passes(page: Page, run: RunFiles) -> None:
    page.heading("Passes")
    page.table(passes_table(run))
    page.small(
        "Epochs are counted from 1; train is a pass over the training images, val over those that the model "
        "is not trained on. Top-5: the label is among the five likeliest classes. The first batch is waited "
        "for from the begin of its pass."
    )
    speeds = speed_charts(run)
    page.plot("Images per second, by epoch; each plot has its own scale.", speeds, columns=len(speeds))
    page.plot(
        "Left: loss, lower is better. Right: how many images the model classifies rightly.",
        learning_charts(run),
        columns=2,
    )


def _time(page: Page, run: RunFiles) -> None:
    page.heading("Where the time went")
    page.paragraph(
        "Only what the trainer waits slows it. The other seconds overlap: workers read ahead and functions "
        "fetch and decode ahead while a step computes, several at once, so their sums may be larger than the "
        "time of the pass. Reading is out of the cache and writing into it; found and missed are samples at "
        "the first look into it."
    )
    page.table(data_time_table(run))
    charts = step_charts(run)
    if charts:
        on_gpu = ((run.manifest or {}).get("software") or {}).get("device") == "cuda"
        overlap = (
            " Computing goes on behind the process on a GPU, so that a step may take less." if on_gpu else ""
        )
        page.plot(
            "What the steps of the first epoch and of the last consist of, means where there are many. Other "
            f"is what a step keeps the process for beside its computing.{overlap}{_of_rank_0(run)}",
            charts,
            columns=len(charts),
            alike=len(charts) > 1,
        )
    times, chart = step_times_table(run), step_times_chart(run)
    if times is not None and chart is not None:
        page.table(times)
        page.plot("Means over the steps since the one before, waiting and all else with it.", [chart])
    table = status_table(run)
    if table is not None:
        page.paragraph(
            "Status checks: the sampler asks the coordinator for pages of its plan, which tell the status "
            "of each batch, looks again while batches are late, and shows that it lives. A background thread "
            "does it ahead; only the last two columns are time of the trainer." + _of_rank_0(run)
        )
        page.table(table)


def _stalls(page: Page, run: RunFiles) -> None:
    page.heading("Why the trainer waited")
    table = stalls_table(run)
    if table is None:
        page.paragraph("Its files do not tell: stalls are summed up at the end of a pass.")
        return
    page.paragraph(
        "A step stalled if the trainer waited for more than a twentieth of its time. Each stalled step has "
        "one cause, and stalls.jsonl has each; all other steps were bound by computing." + _of_rank_0(run)
    )
    page.table(table)
    causes = causes_table(run)
    if causes is None:
        page.paragraph("No step stalled.")
        return
    page.table(causes)
    chart = stalls_chart(run)
    if chart is not None:
        page.plot("Seconds that the trainer waited in each epoch's training pass, by cause.", [chart])


def _processors(page: Page, run: RunFiles) -> None:
    table = processors_table(run)
    charts = usage_charts(run)
    if table is None and not charts:
        return
    page.heading("Device and processors")
    if table is not None:
        page.table(table)
        page.small(
            "Computing is the time of steps on the device, by CUDA events on a GPU and by the clock on a "
            "CPU. Cores in use are CPU seconds per second, of the trainer and all that it started on this "
            "machine; what runs elsewhere is not in them. A GPU is busy while some kernel runs, which is not "
            "to say fully used." + _of_rank_0(run, " CPU by image is left out: its images are of all ranks.")
        )
    gpus = gpus_table(run)
    if gpus is not None:
        page.table(gpus)
    if charts:
        page.plot("What the parts of the run use over time, on each other.", charts)


def _of_rank_0(run: RunFiles, also: str = "") -> str:
    return f" Of {run.ranks} ranks this is rank 0, with what it started.{also}" if run.ranks > 1 else ""


def _cost(page: Page, bill: dict[str, Any]) -> None:
    page.heading("What it cost")
    page.table(bill_table(bill))
    if bill["epochs"] and bill["usd"]:
        page.table(epoch_cost_table(bill))
    verified = ", ".join(bill["verified"])
    looked_up = f"Looked up there: {verified}; all else is from memory." if verified else ""
    page.small(
        f"List prices of {bill['region']}, {bill['date']}. {looked_up} Time before, between and after the "
        f"epochs is in the run's column alone. Not in it: {'; '.join(bill['left_out'])}."
    )
    chart = cost_chart(bill)
    if chart is not None:
        page.plot("US dollars by what they were paid for.", [chart])


def _what_it_was(page: Page, run: RunFiles) -> None:
    manifest = run.manifest or {}
    settings = run.known.get("loader_settings") or {}
    if settings:
        page.heading("Loader")
        page.facts(f"Settings of loader {run.spec.get('loader', {}).get('kind', '')}", _flat(settings))
    page.heading("Spec, machine and versions")
    if run.spec:
        page.listing("The spec, with its defaults", "\n".join(_leaves(run.spec)))
    hardware, software = manifest.get("hardware") or {}, manifest.get("software") or {}
    packages = software.get("packages") or {}
    commit = manifest.get("commit")
    facts = {
        "SUPER": f"{packages.get('superdl') or 'of a version not known'}"
        + (f", commit {commit}{', with changes' if manifest.get('dirty') else ''}" if commit else ""),
        "processor": f"{hardware.get('cpu')}, {count(hardware.get('usable_cores'), 'core')} of "
        f"{hardware.get('logical_cores')} usable, {size(hardware.get('memory_bytes'))} of memory",
        "GPUs": ", ".join(
            f"{gpu['name']} ({size(gpu['memory_bytes'])})" for gpu in hardware.get("gpus") or ()
        )
        or "none",
        "device": str(software.get("device")),
        "torch threads": str(software.get("torch_threads")),
        "Python": f"{software.get('python')} on {software.get('platform')}",
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items() if version),
    }
    if manifest:
        page.facts("Machine and versions, by manifest.json", facts)
    data = (
        f"{count(run.known.get('train_samples'))} training, {count(run.known.get('val_samples'))} validation"
    )
    page.small(
        f"Images: {data}. Beside this page: steps.jsonl and .csv have every step, stalls.jsonl and .csv "
        "each that waited, utilization.jsonl and .csv what was used, report.json the figures above, "
        "spec.yaml what superdl run takes to do it again; docs/runs.md says what each column is."
    )


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}


def _leaves(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every value of a spec by its dotted key, as the command line takes it; empty sections are left out."""
    for name, value in mapping.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={'null' if value is None else value}"
