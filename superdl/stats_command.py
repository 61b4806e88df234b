"""``superdl stats``: print a coordinator's jobs, or the status of batches."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from superdl.options import add_coordinator, coordinator_of
from superdl.super_wire.display import counted, shown, sized
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from google.protobuf.message import Message

    from superdl.experiments.console import Console

_TIME = "%Y-%m-%d %H:%M:%S"
_SPENDING = {
    "slowed": "; near a cap: producing only what readers wait for",
    "stopped": "; stopped at the cap",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    add = parser.add_argument
    add_coordinator(parser)
    add("--batch", action="append", default=[], metavar="ID", help="a batch's id in hex; may be repeated")
    add("--history", action="store_true", help="include jobs that are no longer open")
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Query the coordinator and print its reply."""
    from superdl.experiments.console import Console  # --help does not need it
    from superdl.sampler.rpc import FIRST_CONTACT, Client, checked_address
    from superdl.super_wire import coordinator_pb2 as pb

    ids = [_batch_id(text) for text in arguments.batch]
    client = Client(checked_address(coordinator_of(arguments, "stats"), "--coordinator"))
    with client.hold():
        if ids:
            reply = client.call("GetBatchStatus", pb.GetBatchStatusRequest(batch_ids=ids), FIRST_CONTACT)
        else:
            request = pb.GetJobStatsRequest(history=arguments.history)
            reply = client.call("GetJobStats", request, FIRST_CONTACT)
    if arguments.json:
        sys.stdout.write(json.dumps(mapping(reply), indent=2) + "\n")
        return 0
    # Text from other programs must not steer the terminal.
    fields = mapping(reply, shown)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if ids:
        _print_batches(fields, console)
    else:
        _print_jobs(fields, console)
    return 0


def _batch_id(text: str) -> bytes:
    try:
        batch = bytes.fromhex(text)
    except ValueError:
        batch = b""
    if len(batch) != ID_BYTES:
        raise ConfigError(f"a batch id must be 32 hex digits, as info.batch_id.hex() returns, not {text!r}")
    return batch


def mapping(message: Message, text: Callable[[str], str] = str) -> dict[str, Any]:
    """Return a message's fields as JSON values, with ids in hex and strings passed through ``text``."""
    return {field.name: _value(getattr(message, field.name), text) for field in message.DESCRIPTOR.fields}


def _value(value: Any, text: Callable[[str], str]) -> Any:
    from google.protobuf.message import Message

    if isinstance(value, Message):
        return mapping(value, text)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return text(value)
    return value if isinstance(value, (int, float)) else [_value(item, text) for item in value]


def _print_jobs(reply: dict[str, Any], console: Console) -> None:
    if not reply["jobs"]:
        console.print("no open jobs: a job is open while its sampler exists")
    for job in [*reply["history"], *reply["jobs"]]:
        if job["opened_s"]:
            opened, closed = (time.localtime(job[name]) for name in ("opened_s", "closed_s"))
            end = f"to {time.strftime(_TIME, closed)}" if job["closed_s"] else "until the coordinator exited"
            console.print(f"from {time.strftime(_TIME, opened)} {end}")
        read, missed = job["cache_hits"], job["cache_misses"]
        share = f"{read / (read + missed):.1%}" if read + missed else "none"
        causes = sorted(job["stall_causes"], key=lambda cause: -cause["wait_s"])
        stalls = ", ".join(
            f"{cause['cause']} {cause['batches']:,} ({cause['wait_s']:.2f} s)" for cause in causes
        )
        ahead = "" if job["closed_s"] else f"; looks {job['lookahead_batches']} batches ahead"
        console.print(
            f"job {job['job']}  {job['source']}{'  of team ' if job['team'] else ''}{job['team']}\n"
            f"  at epoch {job['epoch']}, position {job['position']}; {job['batches_read']:,} batches read, "
            f"one every {job['interval_s']:.3f} s{ahead}"
            f"{'; no recent activity' if job['lapsed'] else ''}\n"
            f"  cache: {share} of {read:,} + {missed:,} samples hit, {job['samples_reused']:,} resident when "
            f"planned; {job['stalls']:,} batches stalled{': ' if stalls else ''}{stalls}\n"
            f"  functions: {job['invocations']:,} calls ({job['hedges']:,} hedging stragglers), "
            f"{job['requests_in_flight']:,} in flight, {job['samples_produced']:,} samples produced, "
            f"{job['samples_failed']:,} failed, {job['retries']:,} retried; {job['fetch_s']:.2f} s fetching, "
            f"{job['decode_s']:.2f} s decoding\n"
            f"  readers: {job['read_s']:.2f} s reading, {job['wait_s']:.2f} s waiting for samples\n"
            f"  cost: {job['usd']:.4f} USD; {job['gb_s']:,.1f} GB-s, {job['source_requests']:,} GETs, "
            f"{sized(job['source_bytes'])} fetched, {sized(job['record_bytes'])} into the cache, "
            f"{sized(job['read_bytes'])} out of it"
            + (
                f"\n  store: {job['samples_restored']:,} samples restored, {job['samples_straight']:,} read "
                f"directly; {job['store_requests']:,} requests, {sized(job['store_bytes'])}"
                if reply["cache"]["store"]
                else ""
            )
        )
    for line in cache_lines(reply["cache"]):
        console.print(line)
    _print_executors(reply["executors"], console)
    for team in reply["teams"]:
        cap = f" of at most {team['max_usd']:g}" if team["max_usd"] else ""
        console.print(
            f"  {'team ' if team['name'] else 'no team'}{team['name']}: share {team['share']:g}, priority "
            f"{team['priority']}; {counted(team['jobs'], 'job')}, {team['in_flight']:,} requests in flight, "
            f"{team['requests']:,} since the coordinator started; {team['usd']:.4f} USD in all{cap}"
            f"{'; stopped at its cap' if team['stopped'] else ''}"
        )


def _print_executors(executors: list[dict[str, Any]], console: Console) -> None:
    for executor in executors:
        trouble = f"; problem: {executor['trouble']}" if executor["trouble"] else ""
        console.print(
            f"functions {executor['name']}: {executor['in_flight']:,} requests in flight, "
            f"{executor['concurrency']:,} of {executor['capacity']:,} slots; "
            f"{executor['requests']:,} calls, {executor['samples']:,} samples, "
            f"{executor['usd']:.4f} USD so far{trouble}"
        )


def cache_lines(cache: Mapping[str, Any]) -> list[str]:
    """Describe the cache, store and spending in a ``CacheStats`` mapping. Problems are indented."""
    samples = (
        f"{cache['resident_samples']:,} samples, {sized(cache['resident_bytes'])} of "
        f"{sized(cache['budget_bytes'])}; {cache['in_flight_samples']:,} in flight, "
        f"{cache['dropped_samples']:,} dropped, {cache['reproduced_samples']:,} of them produced again"
    )
    lines = [f"cache: {samples}"]
    if cache["cache_trouble"]:
        lines.append(f"  problem: {cache['cache_trouble']}")
    if cache["thrashing"]:
        from superdl.coordinator.core import maxmemory_for

        lines.append(
            f"  thrashing: samples are dropped and produced again; {sized(cache['needed_bytes'])} for "
            f"records, or a maxmemory of {sized(maxmemory_for(cache['needed_bytes']))}, would stop it"
        )
    if cache["store"]:
        room = f" of {sized(cache['store_room_bytes'])}" if cache["store_room_bytes"] else ""
        stored = f"{counted(cache['store_packs'], 'pack')}, {sized(cache['store_used_bytes'])}{room}"
        lines.append(f"store {cache['store']}: {stored}")
    if cache["store_trouble"]:
        lines.append(f"  problem: {cache['store_trouble']}")
    lines.append(
        f"spent: {cache['total_usd']:.4f} USD, recently {cache['usd_per_hour']:.2f} USD an hour"
        f"{_SPENDING.get(cache['spending'], '')}"
    )
    return lines


def _print_batches(reply: dict[str, Any], console: Console) -> None:
    for batch in reply["statuses"]:
        if not batch["known"]:
            console.print(f"batch {batch['batch_id']}: no open job has planned it recently")
            continue
        console.print(
            f"batch {batch['batch_id']}: {batch['samples']} samples, {batch['resident']} resident, "
            f"{batch['in_flight']} in flight, {batch['failed']} failed"
        )
        for occurrence in batch["occurrences"]:
            console.print("  job {job}, rank {rank}, epoch {epoch}, position {position}".format(**occurrence))
            for event in batch["events"]:
                if event["occurrence"] == occurrence:
                    console.print(f"    {event['seconds_ago']:9.3f} s ago  {event['what']}")
        for sample in batch["details"]:
            reason = f": {sample['message']}" if sample["message"] else ""
            console.print(f"  {sample['sample_id']}  {sample['state']:9}  {sample['key']}{reason}")
