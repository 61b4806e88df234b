"""Compares the price table with the price files that AWS publishes for everybody, without an account.

A service's file for a region, ``/offers/v1.0/aws/SERVICE/current/REGION/index.csv``, has five lines of facts,
column names, and a line for each price. EC2's has hundreds of megabytes, so lines are looked at as they come,
and none is kept. Products are known by their usage type, which outside of us-east-1 begins with the region
(``EUW2-BoxUsage:m5.large``).
"""

from __future__ import annotations

import csv
import http.client
import itertools
import math
import re
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.coordinator.executors.price_table import PriceTable

__all__ = ["CheckedPrice", "check_prices", "look_up"]

_SILENCE_S = 60.0
_LINE_BYTES = 64 * 1024
_FILE_BYTES = 4 * 2**30
_FACT_LINES = 5
_CLOSE = 5e-3  # AWS's pages round
_REGION = re.compile(r"(?:EU|[A-Z]{3}\d)-")
_COLUMNS = ("usageType", "operation", "TermType", "StartingRange", "PricePerUnit", "Currency")

_USAGE = {
    "lambda.invocation": ("AWSLambda", "Request-ARM"),
    "lambda.gb_s": ("AWSLambda", "Lambda-GB-Second-ARM"),
    "lambda.source_request": ("AmazonS3", "Requests-Tier2"),
    "lambda.store_put": ("AmazonS3", "Requests-Tier1"),
    "storage.s3_gb_month": ("AmazonS3", "TimedStorage-ByteHrs"),
    "storage.disk_gb_month": ("AmazonEC2", "EBS:VolumeUsage.gp3"),
    "storage.disk_mb_per_s_month": ("AmazonEC2", "EBS:VolumeP-Throughput.gp3"),
    "nat_gateway.hour": ("AmazonEC2", "NatGateway-Hours"),
    "nat_gateway.gb": ("AmazonEC2", "NatGateway-Bytes"),
    "endpoint.hour": ("AmazonVPC", "VpcEndpoint-Hours"),
    "endpoint.gb": ("AmazonVPC", "VpcEndpoint-Bytes"),
    "address.hour": ("AmazonVPC", "PublicIPv4:InUseAddress"),
    "fargate.vcpu_hour": ("AmazonECS", "Fargate-ARM-vCPU-Hours:perCPU"),
    "fargate.gb_hour": ("AmazonECS", "Fargate-ARM-GB-Hours"),
}
"""Where a price of the table stands: service and usage type. Of what is not here, nothing is checked."""
_PARTS = {"EBS:VolumeP-Throughput.gp3": 1024.0}  # their unit is a GiB/s


@dataclass(slots=True)
class CheckedPrice:
    """A price of the table, ``section.unit``, and all that AWS's file of ``published`` has for it."""

    name: str
    service: str
    ours: float
    theirs: set[float] = field(default_factory=set)
    published: str = ""

    @property
    def agrees(self) -> bool:
        """Whether one of theirs is ours."""
        return any(math.isclose(self.ours, one, rel_tol=_CLOSE) for one in self.theirs)

    def __str__(self) -> str:
        theirs = " or ".join(f"{one:g}" for one in sorted(self.theirs)) or "no such product"
        word = "same" if self.agrees else "DIFFERS" if self.theirs else "not found"
        return f"{word}: {self.name} {self.ours:g}, {self.service} {theirs} ({self.published})"


def check_prices(
    prices: PriceTable, base_url: str, tell: Callable[[str], None] = lambda _: None
) -> list[CheckedPrice]:
    """Look every price of the table up that has a place in the files below ``base_url``, in its region.

    Raises:
        ConfigError: ``base_url`` is no address of the web.
        SourceError: a file cannot be read, or is none of prices; the message names it.
    """
    if not base_url.startswith(("https://", "http://")):
        raise ConfigError(f"--check-prices takes an address that begins with https://, not {base_url!r}")
    wanted: dict[str, dict[str, CheckedPrice]] = {}
    for name, service, usage, ours in _places(prices):
        wanted.setdefault(service, {})[usage] = CheckedPrice(name, service, ours)
    for service, checked in wanted.items():
        url = f"{base_url.rstrip('/')}/offers/v1.0/aws/{service}/current/{prices.region}/index.csv"
        tell(f"reading {url}")
        try:
            with urllib.request.urlopen(url, timeout=_SILENCE_S) as answer:  # noqa: S310  # looked at above
                look_up(checked, csv.reader(_lines(answer)))
        except (OSError, ValueError, csv.Error, http.client.HTTPException) as error:
            raise SourceError(
                f"the price file {url} cannot be read: {error}; check the network, or name a mirror: "
                "superdl cost --check-prices URL"
            ) from error
    return [one for checked in wanted.values() for one in checked.values()]


def _places(prices: PriceTable) -> Iterator[tuple[str, str, str, float]]:
    """Name, service, usage type and our price of all that has a place in the files."""
    for name, (service, usage) in _USAGE.items():
        section, unit = name.split(".")
        yield name, service, usage, getattr(getattr(prices, section, prices.of(section)), unit)
    for name, machine in prices.machines.items():
        training = name.startswith("ml.")  # SageMaker's
        place = ("AmazonSageMaker", f"Train:{name}") if training else ("AmazonEC2", f"BoxUsage:{name}")
        yield f"machine.{name}", *place, machine.hour
    for name, node in prices.cache_nodes.items():
        yield f"cache_node.{name}", "AmazonElastiCache", f"NodeUsage:{name}", node.hour


def look_up(checked: dict[str, CheckedPrice], rows: Iterator[list[str]]) -> None:
    """Note what the rows of a file have for the usage types that are ``checked``.

    Raises:
        ValueError, csv.Error: they are none of a price file.
    """
    facts = dict(row[:2] for row in itertools.islice(rows, _FACT_LINES) if len(row) > 1)
    columns = next(rows, [])
    if not set(_COLUMNS) <= set(columns):
        raise ValueError(f"its line {_FACT_LINES + 1} has no columns {', '.join(_COLUMNS)}")
    usage, operation, term, start, price, currency = (columns.index(name) for name in _COLUMNS)
    engine = columns.index("Cache Engine") if "Cache Engine" in columns else None
    for one in checked.values():
        one.published = facts.get("Publication Date", "")[:10]
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a line has {len(row)} columns of {len(columns)}: it is cut off")
        kind = _REGION.sub("", row[usage], count=1)
        if kind not in checked or (row[term], row[currency]) != ("OnDemand", "USD"):
            continue
        # Of machines there are Windows and others, of nodes Redis OSS and Memcached, of requests many tiers.
        of_kind = row[start] in {"", "0"} and (engine is None or row[engine] == "Valkey")
        if of_kind and (row[operation] == "RunInstances" or not kind.startswith("BoxUsage:")):
            usd = float(row[price])
            if not 0 <= usd < math.inf:
                raise ValueError(f"a price is {row[price]}")
            checked[kind].theirs.add(usd / _PARTS.get(kind, 1.0))


def _lines(answer: http.client.HTTPResponse) -> Iterator[str]:
    left = _FILE_BYTES
    while line := answer.readline(_LINE_BYTES + 1):
        left -= len(line)
        if len(line) > _LINE_BYTES or left < 0:
            raise ValueError(f"a line has over {_LINE_BYTES:,} bytes, or the file over {_FILE_BYTES:,}")
        yield line.decode("utf-8")
    if answer.length:  # readline() takes an early end for the end
        raise ValueError(f"it ends {answer.length:,} bytes early")
