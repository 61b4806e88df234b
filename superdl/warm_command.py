"""``superdl warm SOURCE``: fill a coordinator's cache or store before jobs need it.

Exit codes: 0 all samples that fit are ready, 1 some samples failed or the command stopped early.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from rich.progress import Progress, TextColumn

from superdl.options import above_zero, add_recipe_options, recipe_of
from superdl.sampler.rpc import FIRST_CONTACT, RUNNING, Client, checked_address
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.display import shown, sized
from superdl.super_wire.errors import CacheError, ConfigError, CoordinatorError, UnknownJobError
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.user_text import parse_bytes

if TYPE_CHECKING:
    import argparse

    from superdl.experiments.console import Console
    from superdl.super_dataset import SuperDataset
    from superdl.super_wire.recipe import Recipe

_BATCH = 64
_BATCH_SHARE = 1 / 4  # of the cache, since the coordinator rejects a batch that would not fit
_POLL_S = 0.05
_LINE_EVERY_S = 10.0
_ENDS = {
    "all": "all samples were processed",
    "full": "the cache is full, and more samples would replace those in it",
    "max_bytes": "stopped at --max-bytes",
    "max_usd": "stopped at --max-usd",
    "spending_cap": "the coordinator's own spending cap was reached",
    "stalled": "gave up",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    add = parser.add_argument
    add("source", help="s3://bucket/prefix, file:///directory or a path, as for SuperDataset")
    add("--coordinator", help="the coordinator's address (default: SUPER_COORDINATOR)")
    add_recipe_options(parser)
    add("--key-list", metavar="URL", help="the dataset's key list, if it has one")
    add("--alias", help="name that replaces the source's location in sample ids")
    add("--versions", choices=("times", "digests"), help="how sample ids identify a file's version")
    add("--shuffle", action="store_true", help="start with the samples that a shuffling job reads first")
    add("--seed", type=int, default=0, help="seed of that job's shuffle (default: 0)")
    add("--to", choices=("cache", "store"), help="tier to fill (default: the store, or else the cache)")
    add("--max-bytes", metavar="SIZE", help="stop at this total size, such as 100gb")
    add("--max-usd", type=float, default=math.inf, metavar="USD", help="stop at about this cost")
    add(
        "--patience",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="give up if no sample of a batch arrives for this long (default: 120)",
    )
    add("--json", action="store_true", help="print the report as JSON on standard output")


def run(arguments: argparse.Namespace) -> int:
    """Fill the cache or store, and report the result."""
    from superdl.experiments.console import Console
    from superdl.experiments.output import tell_json
    from superdl.super_dataset import SuperDataset  # --help does not need torch

    recipe = _recipe(arguments)
    max_usd = above_zero("--max-usd", arguments.max_usd)
    bounds = pb.FillUpRequest(
        job=f"warm-{os.urandom(16).hex()}",
        max_bytes=parse_bytes(arguments.max_bytes, "--max-bytes") if arguments.max_bytes else 0,
        max_usd=0.0 if max_usd == math.inf else max_usd,
    )
    patience_s = above_zero("--patience", arguments.patience)
    client = Client(checked_address(_address(arguments), "--coordinator"))
    naming = {"alias": arguments.alias, "versions": arguments.versions}
    dataset = SuperDataset(arguments.source, recipe, key_list=arguments.key_list, **naming)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with client.hold():
        info, _ = client.register(
            dataset, bounds.job, listed=lambda count: console.print(f"{count:,} listed")
        )
        stats = client.call("GetJobStats", pb.GetJobStatsRequest(), FIRST_CONTACT)
    for warning in info.warnings:
        console.print(warning)
    target = arguments.to or ("store" if stats.cache.store else "cache")
    bounds.to_store = target == "store"
    if bounds.to_store and not stats.cache.store:
        raise ConfigError(
            f"the coordinator at {client.address} has no store: start it with --store, or use --to cache"
        )
    shape = recipe.output_shape
    record_bytes = HEADER_BYTES + math.prod(shape) if shape else 1
    fitting = int(_BATCH_SHARE * stats.cache.budget_bytes / record_bytes)
    job = pb.OpenJobRequest(
        job=bounds.job,
        batch_size=max(1, min(_BATCH, info.size, fitting)),
        replicas=1,
        seed=arguments.seed,
        shuffle=arguments.shuffle,
        dataset_id=info.dataset_id,
        fills=True,
    )
    report = _Report(info.size, to_store=bounds.to_store)
    _Warming(client, dataset, job, bounds, patience_s, report).run(console)
    _print_report(report, target, console)
    tell_json(asdict(report), shown=arguments.json)
    if report.ended == "interrupted":
        return 130
    return 1 if report.failed or report.ended not in {"all", "full", "max_bytes"} else 0


def _address(arguments: argparse.Namespace) -> str:
    address = arguments.coordinator or os.environ.get("SUPER_COORDINATOR")
    if not address:
        raise ConfigError(
            "superdl warm needs a long-running coordinator, because an embedded one exits with its run: "
            "start superdl coordinator, then pass --coordinator host:port or set SUPER_COORDINATOR"
        )
    return str(address)


def _recipe(arguments: argparse.Namespace) -> Recipe:
    recipe = recipe_of(arguments)
    if recipe is None:
        raise ConfigError(
            "pass the recipe that the jobs use, as --resize 256 --crop 224 or as --recipe FILE.json"
        )
    if recipe.random:
        raise ConfigError(
            "this recipe is random, so each epoch has its own samples and none can be prepared. Put "
            "random augmentation after the cache (SuperDataset(transform=Augment(...)), docs/data.md)"
        )
    return recipe


@dataclass(slots=True)
class _Report:
    """The result, as counted by the coordinator."""

    samples: int
    to_store: bool
    ended: str = ""
    # The reason for an early end.
    why: str = ""
    # In the cache or the store, where they take up record_bytes: produced for this job, or hits.
    warm: int = 0
    hits: int = 0
    produced: int = 0
    failed: int = 0
    record_bytes: int = 0
    usd: float = 0.0
    invocations: int = 0
    source_requests: int = 0
    seconds: float = 0.0
    # Keys and reasons of the first failed samples.
    failures: list[dict[str, str]] = field(default_factory=list)


# Counters of the report, and their names in the coordinator's statistics of a job.
_COUNTED = {"produced": "samples_produced", **{n: n for n in ("usd", "invocations", "source_requests")}}


@dataclass(slots=True)
class _Warming:
    """The warming job, from start to finish."""

    client: Client
    dataset: SuperDataset
    job: pb.OpenJobRequest
    bounds: pb.FillUpRequest
    patience_s: float
    report: _Report
    job_before: pb.JobStats = field(default_factory=pb.JobStats)
    is_open: bool = False
    progress_s: float = 0.0

    def run(self, console: Console) -> None:
        report, begin_s, line_due_s = self.report, time.monotonic(), 0.0
        columns = (*Progress.get_default_columns(), TextColumn("{task.fields[phrase]}"))
        bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        task = bar.add_task("warming", total=report.samples, phrase="")
        with self.client.hold(), bar:
            try:
                while not report.ended:
                    time.sleep(_POLL_S)
                    self._poll(time.monotonic() - begin_s)
                    done, speed = report.warm + report.failed, report.warm / max(report.seconds, 1e-9)
                    counts = f"{report.produced:,} produced  {report.failed:,} failed  {report.usd:.4f} USD"
                    bar.update(task, completed=done, phrase=f"{speed:,.0f}/s  {counts}")
                    if bar.disable and report.seconds >= line_due_s:
                        line_due_s = report.seconds + _LINE_EVERY_S
                        console.print(f"{done:,} of {report.samples:,}  {speed:,.0f}/s  {counts}")
            except (CacheError, ConfigError, CoordinatorError) as error:  # a store may be full, or gone
                report.ended, report.why = "stalled", f"{type(error).__name__}: {error}"
            except KeyboardInterrupt:
                report.ended = "interrupted"
            finally:
                report.seconds = time.monotonic() - begin_s
                with suppress(CacheError, CoordinatorError):  # the coordinator also drops an idle job
                    self.client.call("CloseJob", pb.CloseJobRequest(job=self.job.job), FIRST_CONTACT)

    def _poll(self, seconds: float) -> None:
        """Fetch the coordinator's counts. The coordinator keeps filling only while it is being polled."""
        try:
            if not self.is_open:
                self.client.call("OpenJob", self.job, RUNNING)
                self.is_open = True
            filled = self.client.call("FillUp", self.bounds, RUNNING)
            stats = self.client.call("GetJobStats", pb.GetJobStatsRequest(jobs=[self.job.job]), RUNNING)
        except UnknownJobError:  # after a restart, it may list again and counts from 0
            info, _ = self.client.register(self.dataset, self.job.job, listed=lambda _: None)
            self.job.dataset_id, self.is_open = info.dataset_id, False
            self.job_before = pb.JobStats()
            return
        report, (job,), cache = self.report, stats.jobs, stats.cache
        before = report.warm, report.failed, report.produced
        report.seconds, report.ended = seconds, filled.ended
        report.warm, report.failed, report.record_bytes = filled.there, filled.failed, filled.size_bytes
        report.failures = [{"key": sample.key, "reason": sample.message} for sample in filled.failures]
        for name, counter in _COUNTED.items():
            grown = getattr(job, counter) - getattr(self.job_before, counter)
            setattr(report, name, getattr(report, name) + grown)
        report.hits = max(0, report.warm - report.produced)
        self.job_before = job
        if before != (report.warm, report.failed, report.produced):
            self.progress_s = seconds
        if not report.ended and seconds - self.progress_s > self.patience_s:
            trouble = cache.store_trouble if report.to_store else ""
            because = trouble or "check that functions are running (superdl stats, the coordinator's log)"
            remaining = report.samples - report.warm - report.failed
            report.ended = "stalled"
            report.why = f"none of {remaining:,} samples arrived for {self.patience_s:g} s: {because}"


def _print_report(report: _Report, target: str, console: Console) -> None:
    end = _ENDS.get(report.ended, report.ended)
    console.print(f"{end}: {report.why}" if report.why else end)
    console.print(
        f"{report.warm:,} of {report.samples:,} samples are in the {target} and take up "
        f"{sized(report.record_bytes)}: {report.hits:,} were already there, {report.produced:,} were "
        f"produced; {report.failed:,} failed"
    )
    console.print(f"{report.usd:.4f} USD, {report.source_requests:,} GETs in {report.seconds:.1f} s")
    for failure in report.failures:
        console.print(f"  {shown(failure['key'])}: {shown(failure['reason'])}")
    if report.failed > len(report.failures):
        console.print(f"  and {report.failed - len(report.failures):,} more")
