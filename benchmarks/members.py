"""``superdl bench members``: samples in tar shards of an S3 store, read by SUPER and by WebDataset.

The shards are the same, and so is the S3 server of this machine. SUPER reads by the key list that ``superdl
index`` writes of them. Each arm is a process of its own; what it does is :mod:`benchmarks.members_arm`'s.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import not_negative, positive
from benchmarks.contenders import CONTENDERS, with_versions
from benchmarks.image_sets import Loading, add_data_option, data_directory, described, prepare_images
from benchmarks.members_arm import EPOCHS, SOURCE, SUPER, WEBDATASET, Epoch, ReadSpec, read
from benchmarks.processes import BenchmarkError, Pids, run_child, said_by
from benchmarks.results import BenchmarkReport, Column, Run, Started, by_conditions, describe_machine
from benchmarks.services import Server, cache_server, coordinator_services, s3_server
from superdl.coordinator.core import maxmemory_for
from superdl.super_wire.record import HEADER_BYTES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["add_arguments", "checked", "measure", "rows_of", "write_shards"]

_FOOTPRINT = 1.25  # what a record takes in the cache beyond its own length, with some room

_METHOD = (
    (
        "Medians over the rounds; each arm has fresh processes and all cores. The first epoch begins where "
        "the loader is opened, imports left out: WebDataset's workers start in it, SUPER's functions before. "
        "SUPER's cache holds all, so its second epoch has no GET."
    ),
    (
        "WebDataset opens a shard by one GET of boto3, shuffles shards and a buffer of 1,000 samples, and "
        "decodes in its workers. SUPER decodes in functions, at low priority, and is read by SuperLoader."
    ),
    (
        "CPU is user and system time in ms for each image: of the process that reads with its workers, and "
        "of these, coordinator, cache and functions together. The S3 server (rclone) is told apart."
    ),
)

_COLUMNS = (
    Column("arm", "arm"),
    Column("epoch", "epoch"),
    Column("images_per_s", "images/s", ",.0f"),
    Column("share_of_webdataset", "share of\nWebDataset", ".2f"),
    Column("first_batch_ms", "first\nbatch ms", ",.0f"),
    Column("reader_cpu_ms", "reader's\nCPU ms", ".3f"),
    Column("cpu_of_all_ms", "CPU of\nall, ms", ".3f"),
    Column("store_cpu_ms", "S3 server's\nCPU ms", ".3f"),
    Column("gets", "GETs", ",.0f"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_data_option(parser, photos=2000)
    parser.add_argument("--per-shard", type=positive, default=100, help="images of a tar (100)")
    parser.add_argument("--batch-size", type=positive, default=64, help="(64)")
    parser.add_argument("--workers", type=not_negative, default=2, help="of WebDataset's DataLoader (2)")
    parser.add_argument("--rounds", type=positive, default=1, help="of both arms, with fresh services (1)")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Read two epochs by each arm, in each round; ``say`` gets a line for each.

    Raises:
        SuperError: images or services cannot be had, or a loader failed.

    """
    started = Started(arguments, with_versions(describe_machine(), ["webdataset", "boto3"]))
    images = prepare_images("photos", arguments, say)
    loading = replace(images, batch_size=arguments.batch_size, num_workers=arguments.workers)
    missing = CONTENDERS["webdataset"].missing()
    runs: list[Run[Epoch]] = []
    place = data_directory(arguments.data)
    with tempfile.TemporaryDirectory(prefix="superdl-bench-members-", dir=place) as directory:
        shards = write_shards(loading, Path(directory, "s3", "shards", "train"), arguments.per_shard)
        with s3_server(Path(directory, "s3")) as server:
            key_list = str(Path(directory, "keys.jsonl"))
            words = ("-m", "superdl.main", "index", SOURCE, "-o", key_list)
            said_by(words, server.environment, name="superdl index")
            spec = ReadSpec("", loading, Pids(store=server.pid), key_list, shards)
            for number in range(1, arguments.rounds + 1):
                for arm in (WEBDATASET, SUPER)[bool(missing) :]:
                    say(f"{arm}, round {number} of {arguments.rounds}")
                    epochs = checked(arm, _epochs(replace(spec, arm=arm), server), loading.images)
                    runs += [
                        Run({"arm": arm, "epoch": name}, number, one)
                        for name, one in zip(EPOCHS, epochs, strict=True)
                    ]
    return started.report(
        image_sets=described([images]),
        shards=shards,
        method=_METHOD,
        columns=_COLUMNS,
        rows=rows_of(runs, missing),
        rounds=(run.to_mapping() for run in runs),
    )


def write_shards(loading: Loading, directory: Path, per_shard: int) -> int:
    """Write the images as ``INDEX.jpg`` with ``INDEX.cls`` into tars of so many; how many tars there are."""
    directory.mkdir(parents=True)
    files = sorted(Path(loading.directory).glob("*/*"))
    classes = {name: label for label, name in enumerate(sorted({file.parent.name for file in files}))}
    starts = range(0, len(files), per_shard)
    for number, start in enumerate(starts):
        with tarfile.open(directory / f"{number:05d}.tar", "w") as tar:
            for index, file in enumerate(files[start : start + per_shard], start):
                label = str(classes[file.parent.name]).encode()
                for extension, content in (("jpg", file.read_bytes()), ("cls", label)):
                    member = tarfile.TarInfo(f"{index:09d}.{extension}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return len(starts)


def _epochs(spec: ReadSpec, server: Server) -> list[Epoch]:
    """An arm's epochs, read in a process of its own; SUPER's with services of its own."""
    if spec.arm == WEBDATASET:
        return run_child(read, spec, name=spec.arm, environment=server.environment).epochs
    loading, environment = spec.loading, server.environment
    set_bytes = (HEADER_BYTES + 3 * loading.crop**2) * loading.images
    room = maxmemory_for(int(_FOOTPRINT * set_bytes))
    with (
        cache_server() as held,
        coordinator_services(held, "--store", "none", budget_bytes=room, environment=environment) as services,
    ):
        pids = replace(services.pids, store=server.pid)
        spec = replace(spec, loading=replace(loading, coordinator=services.coordinator), pids=pids)
        return run_child(read, spec, name=spec.arm, environment=environment).epochs


def checked(arm: str, epochs: Sequence[Epoch], images: int) -> Sequence[Epoch]:
    """These epochs, if they are what the table says of them.

    Raises:
        BenchmarkError: one has more or fewer samples than the set, or SUPER's second is not all cached.

    """
    for name, epoch in zip(EPOCHS, epochs, strict=True):
        if epoch.images != images:
            raise BenchmarkError(f"{arm} gave {epoch.images} of {images} samples in its {name} epoch")
    if arm == SUPER and (gets := epochs[-1].gets):
        raise BenchmarkError(f"SUPER's second epoch has {gets} GETs: its cache does not hold all")
    return epochs


def rows_of(runs: Iterable[Run[Epoch]], missing: str = "") -> list[dict[str, Any]]:
    """For each arm and epoch the medians over the rounds, with the share of WebDataset's speed in that epoch.

    ``missing`` says why there is no WebDataset; its row has no figures then.
    """
    rows: list[dict[str, Any]] = []
    if missing:
        nothing = {column.name: None for column in _COLUMNS if column.spec}
        rows.append({"arm": f"{WEBDATASET}: {missing}", "epoch": EPOCHS[0], **nothing})
    for conditions, results in by_conditions(runs):
        all_rounds = [result.figures() for result in results]
        rows.append(
            {**conditions, **{name: median(one[name] for one in all_rounds) for name in all_rounds[0]}}
        )
    speeds = {row["epoch"]: row["images_per_s"] for row in rows if row["arm"] == WEBDATASET}
    for row in rows:
        speed = speeds.get(row["epoch"])
        row["share_of_webdataset"] = row["images_per_s"] / speed if speed else None
    return rows
