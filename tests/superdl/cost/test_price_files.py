"""AWS's price files, by excerpts in their form from a server on loopback: what agrees, differs, breaks."""

from __future__ import annotations

import csv
import io
import json

import pytest

from superdl.coordinator.executors.price_table import load_prices
from superdl.cost import price_files
from superdl.cost.price_files import check_prices
from superdl.main import main
from superdl.super_wire.errors import ConfigError, SourceError
from tests.fixtures.loopback_http import LoopbackServer

PRICES = load_prices()
FACTS = [
    ("FormatVersion", "v1.0"),
    ("Disclaimer", "This pricing list is for informational purposes only, of 2026."),
    ("Publication Date", "2026-11-20T22:53:08Z"),
    ("Version", "20261120225308"),
]
HEADS = (
    *("SKU", "OfferTermCode", "RateCode", "TermType", "PriceDescription", "EffectiveDate", "StartingRange"),
    *("EndingRange", "Unit", "PricePerUnit", "Currency", "Product Family", "serviceCode", "Instance Type"),
    *("usageType", "operation", "Region Code"),
)


def row(usage, price, **changes):
    known = {"SKU": "2223B6PCG6QAUYY6", "TermType": "OnDemand", "StartingRange": "0", "EndingRange": "Inf"}
    known |= {"Unit": "Hrs", "PricePerUnit": f"{price:.10f}", "Currency": "USD", "usageType": usage}
    return known | {"operation": "RunInstances"} | changes


def file_of(service, rows, heads=HEADS):
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    table.writerows([*FACTS, ("OfferCode", service), heads])
    table.writerows([one.get(head, "") for head in heads] for one in rows)
    return text.getvalue().encode()


def published():
    """A file for each service, with what the table says, among much that it does not ask for."""
    rows = {}
    for _, service, usage, ours in price_files._places(PRICES):
        rows.setdefault(service, []).append(row(usage, ours * price_files._PARTS.get(usage, 1.0)))
    machines = rows["AmazonEC2"]
    machines += [
        row("BoxUsage:g4dn.xlarge", 0.9, operation="RunInstances:0002"),  # Windows
        row("BoxUsage:g4dn.xlarge", 0.2, TermType="Reserved"),
        row("BoxUsage:g4dn.xlarge", 3.0, Currency="CNY"),
        row("UnusedBox:g4dn.xlarge", 0.1),
    ]
    rows["AmazonS3"].append(row("TimedStorage-ByteHrs", 0.021, StartingRange="51200"))
    nodes = [
        one | {"Cache Engine": engine} for engine in ("Valkey", "Redis") for one in rows["AmazonElastiCache"]
    ]
    for one in nodes[len(nodes) // 2 :]:
        one["PricePerUnit"] = "9.0"
    files = {service: file_of(service, some) for service, some in rows.items()}
    files["AmazonElastiCache"] = file_of("AmazonElastiCache", nodes, (*HEADS, "Cache Engine"))
    return files


@pytest.fixture
def aws():
    """The files by service, to be changed; and where they are."""
    files = published()

    def answer(request):
        path = request.path.removeprefix("/offers/v1.0/aws/")
        file = files.get(path.removesuffix("/current/us-east-1/index.csv"))
        request.answer(404 if file is None else 200, {"Content-Type": "text/csv"}, file or b"")

    server = LoopbackServer(answer)
    try:
        yield files, f"http://127.0.0.1:{server.port}"
    finally:
        server.close()


def test_prices_that_are_aws_s_agree_and_each_says_of_when(aws, capsys):
    files, url = aws
    told = []
    checked = check_prices(PRICES, url, told.append)
    assert all(one.agrees for one in checked)
    assert {one.published for one in checked} == {"2026-11-20"}
    names = {one.name for one in checked}
    assert names >= {
        "machine.g4dn.xlarge",
        "cache_node.cache.r7g.large",
        "lambda.gb_s",
        "storage.disk_mb_per_s_month",
    }
    assert len(told) == len(files)
    assert main(["cost", "--check-prices", url]) == 0
    assert f"{len(checked)} of {len(checked)} agree" in capsys.readouterr().out


def test_what_differs_and_what_is_gone_is_named(aws, capsys):
    files, url = aws
    files["AmazonEC2"] = files["AmazonEC2"].replace(b'"0.5260000000"', b'"0.5500000000"')
    files["AmazonS3"] = file_of("AmazonS3", [])
    assert main(["cost", "--check-prices", url]) == 1
    told = capsys.readouterr().out
    assert "DIFFERS: machine.g4dn.xlarge 0.526, AmazonEC2 0.55 (2026-11-20)" in told
    assert "not found: storage.s3_gb_month 0.023, AmazonS3 no such product" in told
    assert main(["cost", "--check-prices", url, "--json"]) == 1
    prices = {one["name"]: one for one in json.loads(capsys.readouterr().out)["prices"]}
    assert prices["machine.g4dn.xlarge"]["theirs"] == [0.55]
    assert prices["machine.g4dn.2xlarge"]["agrees"]


def test_other_regions_say_theirs_before_the_usage_type(aws):
    files, url = aws
    files["AmazonEC2"] = (
        files["AmazonEC2"].replace(b'"BoxUsage:', b'"USE1-BoxUsage:').replace(b'"EBS:', b'"EU-EBS:')
    )
    assert all(one.agrees for one in check_prices(PRICES, url))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda file: file.replace(b"usageType", b"use"), "has no columns usageType"),
        (lambda file: b"<html>moved</html>", "has no columns"),
        (lambda file: file[: len(file) - 40], "columns of 17: it is cut off"),
        (lambda file: file + b'"' + b"x" * 70_000, "a line has over 65,536 bytes"),
        (lambda file: file.replace(b'"0.5260000000"', b'"much"'), "could not convert string"),
        (lambda file: file.replace(b'"Hrs"', b'"\xff"'), "can't decode"),
    ],
)
def test_a_file_that_is_none_of_prices_is_refused(aws, change, reason):
    files, url = aws
    files["AmazonEC2"] = change(files["AmazonEC2"])
    with pytest.raises(
        SourceError, match=f"AmazonEC2/current/us-east-1/index.csv cannot be read: .*{reason}"
    ):
        check_prices(PRICES, url)


def test_a_connection_that_breaks_is_no_end():
    def breaks(request):
        request.send_response(200)
        request.send_header("Content-Length", "1000000")
        request.end_headers()
        request.wfile.write(file_of("AWSLambda", [row("Request-ARM", 2e-7)]))
        request.wfile.flush()
        request.hang_up()

    server = LoopbackServer(breaks)
    try:
        with pytest.raises(SourceError, match="AWSLambda.* bytes early"):
            check_prices(PRICES, f"http://127.0.0.1:{server.port}")
    finally:
        server.close()


def test_what_is_not_there_or_endless_is_refused(aws, monkeypatch, capsys):
    files, url = aws
    monkeypatch.setattr(price_files, "_FILE_BYTES", 1000)
    with pytest.raises(SourceError, match="or the file over 1,000"):
        check_prices(PRICES, url)
    monkeypatch.undo()
    del files["AWSLambda"]
    assert main(["cost", "--check-prices", url]) == 1
    assert "HTTP Error 404" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="begins with https://, not 'file:///etc'"):
        check_prices(PRICES, "file:///etc")
