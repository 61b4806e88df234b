"""``superdl stats``: the jobs of a coordinator, or what is known of one batch. The figures are
:mod:`coordinator`'s.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from super_wire.errors import ConfigError
from super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    import argparse

    from google.protobuf.message import Message

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument("--coordinator", help="address; default SUPER_COORDINATOR")
    parser.add_argument(
        "--batch", action="append", default=[], metavar="ID", help="a batch id in hex; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Ask and print."""
    from sampler.address import checked_address
    from sampler.client import FIRST_CONTACT, Client
    from super_wire import coordinator_pb2 as pb

    address = arguments.coordinator or os.environ.get("SUPER_COORDINATOR")
    if not address:
        msg = "name the coordinator: --coordinator host:port, or the variable SUPER_COORDINATOR"
        raise ConfigError(msg)
    try:
        ids = [bytes.fromhex(text) for text in arguments.batch]
    except ValueError as error:
        msg = f"a batch id is 32 hex digits: {error}"
        raise ConfigError(msg) from error
    for text, batch in zip(arguments.batch, ids, strict=True):
        if len(batch) != ID_BYTES:
            msg = f"a batch id is 32 hex digits; not {text!r}"
            raise ConfigError(msg)
    client = Client(checked_address(address, "--coordinator"))
    with client.hold():
        if ids:
            answer = client.call("GetBatchStatus", pb.GetBatchStatusRequest(batch_ids=ids), FIRST_CONTACT)
        else:
            answer = client.call("GetJobStats", pb.GetJobStatsRequest(), FIRST_CONTACT)
    fields = _mapping(answer)
    if arguments.json:
        sys.stdout.write(json.dumps(fields, indent=2) + "\n")
    elif ids:
        _print_batches(fields)
    else:
        _print_jobs(fields)
    return 0


def _mapping(message: Message) -> dict[str, Any]:
    """A protobuf message as JSON values: all fields, ids in hex, integers as integers."""
    return {field.name: _value(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _value(value: Any) -> Any:
    from google.protobuf.message import Message

    if isinstance(value, Message):
        return _mapping(value)
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, (str, int, float)) else [_value(one) for one in value]


def _print_jobs(answer: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for job in answer["jobs"]:
        console.print(f"job {job['job']}  {job['source']}")
        console.print(
            f"  at epoch {job['epoch']}, position {job['position']}; {job['batches_read']:,} batches read"
        )
        console.print(
            f"  cache: {job['cache_hits']:,} hits, {job['cache_misses']:,} misses, "
            f"{job['samples_reused']:,} found resident when planned"
        )
        console.print(
            f"  functions: {job['invocations']:,} calls, {job['requests_in_flight']:,} in flight, "
            f"{job['samples_produced']:,} samples produced, {job['samples_failed']:,} failed, "
            f"{job['retries']:,} retried; {job['fetch_s']:.2f} s fetching, {job['decode_s']:.2f} s decoding"
        )
        console.print(f"  readers: {job['read_s']:.2f} s reading, {job['wait_s']:.2f} s waiting for samples")
    cache = answer["cache"]
    console.print(
        f"cache: {cache['resident_samples']:,} samples, {cache['resident_bytes'] / 2**20:,.1f} of "
        f"{cache['budget_bytes'] / 2**20:,.1f} MiB; {cache['in_flight_samples']:,} in flight, "
        f"{cache['dropped_samples']:,} dropped"
    )


def _print_batches(answer: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    for batch in answer["statuses"]:
        if not batch["known"]:
            console.print(f"batch {batch['batch_id']}: not planned lately by an open job", highlight=False)
            continue
        console.print(
            f"batch {batch['batch_id']}: {batch['samples']} samples, {batch['resident']} resident, "
            f"{batch['in_flight']} in flight, {batch['failed']} failed",
            highlight=False,
        )
        for place in batch["occurrences"]:
            console.print(
                f"  job {place['job']}, rank {place['rank']}, "
                f"epoch {place['epoch']}, position {place['position']}",
                highlight=False,
            )
        for sample in batch["details"]:
            reason = f": {sample['message']}" if sample["message"] else ""
            console.print(
                f"  {sample['sample_id']}  {sample['state']:9}  {sample['key']}{reason}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
