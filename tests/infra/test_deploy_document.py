"""docs/deploy/aws.md agrees with the template: counts, sums, parameters and outputs."""

import re
import tomllib

import pytest

from superdl.coordinator.executors.price_table import load_prices
from tests.infra.stack_template import ROOT, written

TEXT = (ROOT / "docs" / "deploy" / "aws.md").read_text(encoding="utf-8")
TEMPLATE = written()
HOURS = 730


def rows():
    """What is paid while nothing happens: piece, dollars per hour and per month."""
    found = re.findall(r"^\| (.+?) \|.*\| \**([\d.]+)\** \| \**([\d.]+)\** \|$", TEXT, re.MULTILINE)
    return {piece: (float(hour), float(month)) for piece, hour, month in found}


def of_kind(kind):
    return [entry for entry in TEMPLATE["Resources"].values() if entry["Type"] == kind]


def test_the_table_of_costs_adds_up():
    pieces = rows()
    idle, cheaper = pieces.pop("**idle, together**"), pieces.pop("with `Egress=public-ip`")
    assert sum(month for _, month in pieces.values()) == pytest.approx(idle[1], abs=0.011)
    assert sum(hour for hour, _ in pieces.values()) == pytest.approx(idle[0], abs=0.00011)
    assert idle[1] - 4 * 0.01 * HOURS + 0.005 * HOURS == pytest.approx(cheaper[1], abs=0.011)
    for hour, month in pieces.values():
        assert month == pytest.approx(hour * HOURS, abs=0.05)


def test_prices_are_the_price_tables():
    table = tomllib.loads((ROOT / "coordinator/executors/prices.toml").read_text(encoding="utf-8"))
    pieces = rows()
    cache = next(hour for piece, (hour, _) in pieces.items() if piece.startswith("cache"))
    coordinator = next(hour for piece, (hour, _) in pieces.items() if piece.startswith("coordinator"))
    assert cache + coordinator == pytest.approx(table["lambda"]["hour"])
    prices = load_prices()
    trainer, address = prices.machine("g4dn.xlarge").hour, prices.address["hour"]
    assert f"| trainer `g4dn.xlarge` | {trainer:g} per hour, {address:g} per hour for its address" in TEXT
    hour, gb = prices.nat_gateway["hour"], prices.nat_gateway["gb"]
    assert f"| {hour:g} per hour ({hour * HOURS:.2f} per month), {gb:g} per GB |" in TEXT
    assert f"between zones each GB costs {prices.transfer['between_zones_gb']:g} USD" in TEXT
    assert f"| {prices.endpoint['hour']:g} per hour each, {prices.endpoint['gb']:g} per GB |" in TEXT
    assert "endpoint.gb" in prices.verified


def test_what_is_counted_and_named_is_what_there_is():
    interfaces = [
        item
        for item in of_kind("AWS::EC2::VPCEndpoint")
        if item["Properties"]["VpcEndpointType"] == "Interface"
    ]
    assert f"| {len(interfaces)} interface endpoints" in TEXT
    alarms = [alarm for alarm in of_kind("AWS::CloudWatch::Alarm") if "Condition" not in alarm]
    metrics = sum(
        sum("MetricStat" in query for query in alarm["Properties"]["Metrics"])
        if "Metrics" in alarm["Properties"]
        else 1
        for alarm in alarms
    )
    assert f"| {len(alarms)} alarms on {metrics} metrics" in TEXT
    assert f"{len(of_kind('AWS::SecretsManager::Secret'))} of the cache)" in TEXT
    missing = [name for name in TEMPLATE["Parameters"] if f"`{name}`" not in TEXT]
    assert not missing
    asked = set(re.findall(r"\$\(output (\w+)\)", TEXT)) | {"DashboardUrl", "CoordinatorService"}
    assert asked <= TEMPLATE["Outputs"].keys()


def test_no_password_is_a_word_of_a_command():
    """Every user of a machine sees those; printf is the shell's own, and no command of the machine's."""
    secret = re.compile(r"\$(\{?(OLD|NEW)\b|\(secret )")
    harmless = re.compile(r"\s*(passwords\(\) \{ )?(printf|passwords|export|OLD=|NEW=)")
    for command in re.split(r"[\n;|]", "\n".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL))):
        if secret.search(command.partition("#")[0]):
            assert harmless.match(command), command
