"""The template agrees with the code: cache users, handler, probe, timeouts, metrics and names."""

import asyncio
import importlib
import io
import json
import logging
import re
from contextlib import redirect_stdout
from types import SimpleNamespace

import pytest

from superdl.coordinator.cache.info import CacheLoad
from superdl.coordinator.core import Core, CoreSettings
from superdl.coordinator.server import engine as engine_module
from superdl.coordinator.server import server
from superdl.coordinator.server.metrics import EmfLines
from superdl.coordinator.server.settings import Settings
from superdl.lambda_prefetch.telemetry import log_invocation
from superdl.super_wire.request import PrefetchResult
from tests.infra.stack_template import ROOT, statements_of, worked_out, written
from tests.lambda_prefetch.prefetching import Context

TEMPLATE = written()
RESOURCES = TEMPLATE["Resources"]
PARAMETERS = TEMPLATE["Parameters"]
(CONTAINER,) = RESOURCES["CoordinatorTask"]["Properties"]["ContainerDefinitions"]
FUNCTION = RESOURCES["Prefetch"]["Properties"]
IMAGE = (ROOT / "infra" / "docker" / "coordinator.Dockerfile").read_text(encoding="utf-8")
BYTES_PER_SAMPLE = 25  # while a source is listed, and 500 MB whatever it has: docs/performance.md


def test_alarms_watch_figures_that_the_coordinator_tells(capsys):
    engine = SimpleNamespace(core=Core(CoreSettings(budget_bytes=1)), cache_load=CacheLoad())
    asyncio.run(EmfLines(engine, "a-stack").write())
    told = json.loads(capsys.readouterr().out)
    assert {"Name": "SUPER_METRICS_EMF", "Value": "1"} in CONTAINER["Environment"]
    watched = [
        alarm["Properties"]["MetricName"]
        for alarm in RESOURCES.values()
        if alarm["Type"] == "AWS::CloudWatch::Alarm"
        and [one["Name"] for one in alarm["Properties"].get("Dimensions", ())] == ["Coordinator"]
    ]
    assert len(watched) == 7
    assert set(watched) <= set(told)


def test_times_and_memory_suffice():
    """A function may answer when its request expires, a coordinator may drain, and catalogs leave half."""
    longest_s = Settings().request_timeout_s + engine_module._ANSWER_GRACE_S
    assert PARAMETERS["FunctionTimeout"]["Default"] >= PARAMETERS["FunctionTimeout"]["MinValue"] > longest_s
    assert CONTAINER["StopTimeout"] > server._DRAIN_MAX_S
    sizes = TEMPLATE["Mappings"]["CoordinatorSizes"]
    assert list(sizes) == PARAMETERS["CoordinatorSize"]["AllowedValues"]
    for name, size in sizes.items():
        two_sources_bytes = 2 * int(size["Samples"]) * BYTES_PER_SAMPLE
        assert two_sources_bytes + 500 * 2**20 <= int(size["Memory"]) << 20, name


def test_handler_package_probe_user_and_volume_are_there(monkeypatch):
    module, _, name = FUNCTION["Handler"].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
    assert FUNCTION["CodeUri"] == "../dist/super-prefetch-arm64.zip"
    *_, flag, module = CONTAINER["HealthCheck"]["Command"]
    assert flag == "-m"
    texts = {item["Name"]: item["Value"] for item in CONTAINER["Environment"]}
    for variable, value in texts.items():
        if isinstance(value, str):
            monkeypatch.setenv(variable, value)
    probe, asked = importlib.import_module(module), []
    monkeypatch.setattr(probe, "probe", lambda address: asked.append(address) or "")
    assert (probe.main([]), asked) == (0, ["127.0.0.1:50052"])
    assert f"USER {CONTAINER['User']}" in IMAGE
    mount, _ = CONTAINER["MountPoints"]  # the other one's access point says whose it is
    assert f"VOLUME {mount['ContainerPath']}\n" in IMAGE  # so that Fargate lets the image's user write


@pytest.mark.parametrize(
    ("user", "secret"),
    [("Reader", "ReaderSecret"), ("Function", "FunctionSecret"), ("Coordinator", "CoordinatorCacheSecret")],
)
def test_users_of_the_cache_may_what_the_documentation_says(user, secret):
    """ElastiCache takes the same words, but for the password; and a user of its has nothing to be reset."""
    given, name = RESOURCES[f"{user}User"]["Properties"], f"super-{user.lower()}"
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    documented = re.search(rf"^ACL SETUSER {name} (.*)$", text, re.MULTILINE)[1]
    assert given["UserName"] == name
    assert set(given["AccessString"].split()) == set(documented.split()) - {">SECRET", "resetkeys"}
    assert given["AccessString"].split()[:2] == ["on", "-@all"]
    made = RESOURCES[secret]["Properties"]["GenerateSecretString"]["SecretStringTemplate"]
    assert json.loads(made) == {"username": name}


def test_metrics_are_those_that_the_function_writes():
    result = PrefetchResult("r", "v", cold_start=True, outcomes=("cached",), record_bytes=(1,))
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()) as shown:
            log_invocation(result, Context(), "INFO")
    finally:
        logging.disable(logging.NOTSET)
    (line,) = [json.loads(line) for line in shown.getvalue().splitlines() if '"_aws"' in line]
    (told,) = line["_aws"]["CloudWatchMetrics"]
    assert told["Namespace"] == "SUPER"
    assert [sorted(dimensions) for dimensions in told["Dimensions"]] == [["function_name", "service"]]
    assert line["service"] == "super-prefetch"
    written_names = {metric["Name"] for metric in told["Metrics"]}
    body = RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"][0]
    assert len(json.loads(re.sub(r"\$\{[\w:.]+\}", "x", body))["widgets"]) == 9
    assert set(re.findall(r'\["SUPER", "(\w+)", "function_name"', body)) == written_names
    queries = RESOURCES["SamplesFailedAlarm"]["Properties"]["Metrics"]
    for metric in (query["MetricStat"]["Metric"] for query in queries if "MetricStat" in query):
        assert metric["MetricName"] in written_names
        names = {dimension["Name"]: dimension["Value"] for dimension in metric["Dimensions"]}
        assert names == {"function_name": {"Ref": "Prefetch"}, "service": "super-prefetch"}


def test_a_file_system_for_catalogs_is_mounted_and_reached_by_the_coordinator_alone():
    out = worked_out(StateFileSystemId="fs-0123456789abcdef0")
    (point,) = out.of_type("AWS::EFS::AccessPoint").values()
    (task,) = out.of_type("AWS::ECS::TaskDefinition").values()
    (container,) = task["ContainerDefinitions"]
    variables = {one["Name"]: one["Value"] for one in container["Environment"]}
    (mount,) = (one for one in container["MountPoints"] if one["ContainerPath"] == variables["SUPER_STATE"])
    (volume,) = (one for one in task["Volumes"] if one["Name"] == mount["SourceVolume"])
    assert volume["EFSVolumeConfiguration"]["FilesystemId"] == point["FileSystemId"] == "fs-0123456789abcdef0"
    assert f"{point['PosixUser']['Uid']}:{point['PosixUser']['Gid']}" == container["User"]
    assert statements_of(out, "CoordinatorRole")["KeepState"]["Resource"].endswith("/fs-0123456789abcdef0")
    ports = {
        name: [rule.get("FromPort") for rule in group["SecurityGroupEgress"]]
        for name, group in out.of_type("AWS::EC2::SecurityGroup").items()
    }
    assert [name for name, out_of in ports.items() if 2049 in out_of] == ["CoordinatorSecurityGroup"]
    without = worked_out()
    assert without.of_type("AWS::EFS::AccessPoint") == {}
    assert "KeepState" not in statements_of(without, "CoordinatorRole")
