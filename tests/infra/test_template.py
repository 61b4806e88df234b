"""The template and the code agree: variables, users of the cache, handler, probe, times, metrics, names."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import logging
import re
from contextlib import redirect_stdout

import pytest
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

from superdl.coordinator.server import engine, server
from superdl.coordinator.server.settings import Settings, load_settings
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.lambda_prefetch.telemetry import Telemetry
from superdl.super_wire.cache import Credentials
from superdl.super_wire.request import PrefetchResult
from tests.infra.stack_template import FILE, ROOT, written
from tests.lambda_prefetch.prefetching import Context

TEMPLATE = written()
RESOURCES = TEMPLATE["Resources"]
PARAMETERS = TEMPLATE["Parameters"]
(CONTAINER,) = RESOURCES["CoordinatorTask"]["Properties"]["ContainerDefinitions"]
FUNCTION = RESOURCES["Prefetch"]["Properties"]
BYTES_PER_SAMPLE = 66  # of a catalog, with keys of usual length: a reviewer's figure


def plain(value):
    """Without conditions: the first choice of each."""
    if isinstance(value, dict) and "Fn::If" in value:
        return plain(value["Fn::If"][1])
    return value


def coordinator_variables():
    settings = {f"SUPER_{field.name.upper()}" for field in dataclasses.fields(Settings)}
    return settings | {"SUPER_CACHE_USERNAME", "SUPER_CACHE_PASSWORD"}


def test_the_coordinator_reads_every_variable_that_it_gets():
    given = {plain(item)["Name"] for item in [*CONTAINER["Environment"], *CONTAINER["Secrets"]]}
    assert {name for name in given if name.startswith("SUPER_")} <= coordinator_variables()
    assert {"SUPER_TLS_CERT", "SUPER_TLS_KEY", "SUPER_TLS_CLIENT_CA", "SUPER_TOKEN"} <= given


def test_the_function_reads_every_variable_that_it_gets():
    source = (ROOT / "lambda_prefetch" / "settings.py").read_text(encoding="utf-8")
    for name in FUNCTION["Environment"]["Variables"]:
        assert f'"{name}"' in source
    assert "SUPER_CACHE_PASSWORD" not in FUNCTION["Environment"]["Variables"]


def test_no_secret_is_in_the_containers_environment():
    clear = {item["Name"] for item in CONTAINER["Environment"]}
    assert not clear & {"SUPER_TOKEN", "SUPER_TLS_KEY", "SUPER_CACHE_PASSWORD"}


def test_the_coordinator_takes_the_values_that_the_template_gives_by_default(monkeypatch):
    values = {}
    for item in CONTAINER["Environment"]:
        value = plain(item["Value"])
        if isinstance(value, dict) and value.get("Ref") in PARAMETERS:
            value = PARAMETERS[value["Ref"]].get("Default", "x")
        elif isinstance(value, dict) and "Fn::FindInMap" in value:
            table, choice, field = value["Fn::FindInMap"]
            value = TEMPLATE["Mappings"][table][PARAMETERS[choice["Ref"]]["Default"]][field]
        values[item["Name"]] = "rediss://cache:6379" if item["Name"] == "SUPER_CACHE" else str(value)
    values |= {"SUPER_TLS_CERT": "-----BEGIN", "SUPER_TLS_KEY": "-----BEGIN", "SUPER_TOKEN": "t" * 32}
    if values["SUPER_EXECUTOR"] not in ("local", *_executors()):
        pytest.fail("the coordinator knows no such executor")
    settings = load_settings({}, values)
    assert settings.lambda_concurrency == 100
    assert settings.max_usd == 0.0
    assert settings.catalog_max_samples == 10_000_000
    assert Credentials.from_environment({"SUPER_CACHE_USERNAME": "u", "SUPER_CACHE_PASSWORD": "p"})


def test_a_public_address_goes_before_the_way_out():
    """By a Ref under the address's own condition, for the route is not there in an existing VPC."""
    condition, after, _ = RESOURCES["Coordinator"]["Metadata"]["After"]["Fn::If"]
    assert condition == "PublicAddress"
    assert after == [{"Ref": "PublicRoute"}, {"Ref": "PublicRouteTableOfSubnet"}]
    assert RESOURCES["PublicRoute"]["DependsOn"] == "InternetGatewayAttachment"


def test_the_largest_source_leaves_half_of_the_coordinators_memory():
    sizes = TEMPLATE["Mappings"]["CoordinatorSizes"]
    assert list(sizes) == PARAMETERS["CoordinatorSize"]["AllowedValues"]
    for name, size in sizes.items():
        assert int(size["Samples"]) * BYTES_PER_SAMPLE * 2 <= int(size["Memory"]) << 20, name


def _executors():
    return importlib.import_module("superdl.super_wire.executors").EXECUTORS


def test_the_handler_is_there():
    module, _, name = FUNCTION["Handler"].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_package_is_what_make_lambda_zip_makes():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "lambda-zip" in makefile
    assert FUNCTION["CodeUri"] == "../dist/super-prefetch-arm64.zip"


def test_the_probe_and_its_address_are_there(monkeypatch):
    *_, flag, module = CONTAINER["HealthCheck"]["Command"]
    assert flag == "-m"
    probe = importlib.import_module(module)
    environment = {
        item["Name"]: item["Value"] for item in CONTAINER["Environment"] if isinstance(item["Value"], str)
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asked = []
    monkeypatch.setattr(probe, "probe", lambda address: asked.append(address) or "")
    assert (probe.main([]), asked) == (0, ["127.0.0.1:50052"])


def test_the_container_is_the_images_own_user():
    dockerfile = (ROOT / "infra" / "docker" / "coordinator.Dockerfile").read_text(encoding="utf-8")
    assert f"USER {CONTAINER['User']}" in dockerfile


def test_the_image_names_the_volume_so_that_fargate_lets_its_user_write_there():
    dockerfile = (ROOT / "infra" / "docker" / "coordinator.Dockerfile").read_text(encoding="utf-8")
    for mount in CONTAINER["MountPoints"]:
        assert f"VOLUME {mount['ContainerPath']}\n" in dockerfile


def test_a_function_has_time_to_answer_when_its_request_expires():
    longest_s = Settings().request_timeout_s + engine._ANSWER_GRACE_S
    timeout = PARAMETERS["FunctionTimeout"]
    assert timeout["MinValue"] > longest_s
    assert timeout["Default"] > longest_s


def test_the_coordinator_may_drain_before_it_is_killed():
    assert CONTAINER["StopTimeout"] > server._DRAIN_MAX_S


def test_the_defaults_are_the_codes():
    defaults = {name: parameter.get("Default") for name, parameter in PARAMETERS.items()}
    settings = Settings()
    assert defaults["FunctionMemory"] == settings.function_memory_mb
    assert defaults["Concurrency"] == settings.lambda_concurrency
    assert defaults["Warm"] == settings.lambda_warm
    assert defaults["Invocation"] == settings.lambda_invocation
    assert FunctionSettings().cache_secret == ""


@pytest.mark.parametrize(
    ("resource", "user"),
    [
        ("ReaderUser", "super-reader"),
        ("FunctionUser", "super-function"),
        ("CoordinatorUser", "super-coordinator"),
    ],
)
def test_users_of_the_cache_may_what_the_documentation_says(resource, user):
    """ElastiCache takes the same words, but for the password; and a user of its has nothing to be reset."""
    text = (ROOT / "docs" / "cache.md").read_text(encoding="utf-8")
    documented = re.search(rf"^ACL SETUSER {user} (.*)$", text, re.MULTILINE)[1]
    given = RESOURCES[resource]["Properties"]
    assert given["UserName"] == user
    assert set(given["AccessString"].split()) == set(documented.split()) - {">SECRET", "resetkeys"}
    assert given["AccessString"].split()[:2] == ["on", "-@all"]


def test_each_user_logs_in_with_the_name_in_its_secret():
    for secret, user in (
        ("ReaderSecret", "ReaderUser"),
        ("FunctionSecret", "FunctionUser"),
        ("CoordinatorCacheSecret", "CoordinatorUser"),
    ):
        made = json.loads(RESOURCES[secret]["Properties"]["GenerateSecretString"]["SecretStringTemplate"])
        assert made == {"username": RESOURCES[user]["Properties"]["UserName"]}


def test_a_changed_parameter_of_the_function_makes_another_version():
    """SAM sees code and properties, not the values of parameters: the description carries these."""
    described = re.findall(r"\$\{(\w+)\}", FUNCTION["VersionDescription"]["Fn::Sub"])
    of_a_version = {name: value for name, value in FUNCTION.items() if name != "ReservedConcurrentExecutions"}
    used = set(re.findall(r'"Ref": "(\w+)"', json.dumps(of_a_version))) & PARAMETERS.keys()
    assert used - {"PrivateSubnetIds"} == set(described)  # subnets stay for the stack's life


def test_metrics_are_those_that_the_function_writes():
    result = PrefetchResult(
        request_id="r",
        function_version="v",
        cold_start=True,
        outcomes=("cached",),
        fetch_us=(1,),
        decode_us=(1,),
        push_us=(1,),
        source_bytes=(1,),
        record_bytes=(1,),
        messages={},
        duration_us=1,
    )
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()) as shown:
            Telemetry("INFO").finished(result, Context())
    finally:
        logging.disable(logging.NOTSET)
    (line,) = [json.loads(line) for line in shown.getvalue().splitlines() if '"_aws"' in line]
    (told,) = line["_aws"]["CloudWatchMetrics"]
    assert told["Namespace"] == "SUPER"
    assert {frozenset(dimensions) for dimensions in told["Dimensions"]} == {
        frozenset({"function_name", "service"})
    }
    assert line["service"] == "super-prefetch"
    written_names = {metric["Name"] for metric in told["Metrics"]}
    body = RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"][0]
    assert set(re.findall(r'\["SUPER", "(\w+)"', body)) == written_names
    for metric in _metrics_of(RESOURCES["SamplesFailedAlarm"]):
        assert metric["MetricName"] in written_names
        names = {dimension["Name"]: dimension["Value"] for dimension in metric["Dimensions"]}
        assert names == {"function_name": {"Ref": "Prefetch"}, "service": "super-prefetch"}


def _metrics_of(alarm):
    return [
        query["MetricStat"]["Metric"] for query in alarm["Properties"]["Metrics"] if "MetricStat" in query
    ]


def test_the_dashboard_is_json():
    body = RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"][0]
    assert len(json.loads(re.sub(r"\$\{[\w:.]+\}", "x", body))["widgets"]) == 9


def test_starts_are_counted_by_the_line_that_the_coordinator_logs():
    pattern = RESOURCES["CoordinatorStarts"]["Properties"]["FilterPattern"].strip('"')
    level, _, rest = pattern.partition(" ")
    logger, _, message = rest.partition(": ")
    assert logger == server._log.name
    source = (ROOT / "coordinator" / "server" / "server.py").read_text(encoding="utf-8")
    assert f'_log.{level.lower()}("{message} ' in source
    assert level in PARAMETERS["LogLevel"]["AllowedValues"]


def test_everything_that_can_be_is_tagged():
    untagged = []
    for name, resource in RESOURCES.items():
        kind = resource["Type"].replace("AWS::Serverless::", "AWS::Lambda::")
        known = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", kind).schema["properties"]
        field = next((field for field in ("Tags", "ResourceTags") if field in known), None)
        tags = json.dumps(resource["Properties"].get(field, [])) if field else "super:stack"
        if "super:stack" not in tags:
            untagged.append(name)
    assert not untagged


def test_every_parameter_is_described_grouped_and_used():
    groups = TEMPLATE["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    grouped = [name for group in groups for name in group["Parameters"]]
    assert sorted(grouped) == sorted(PARAMETERS)
    text = FILE.read_text(encoding="utf-8")
    for name, parameter in PARAMETERS.items():
        assert parameter["Description"]
        assert re.search(rf"!Ref {name}\b|\$\{{{name}\}}", text), name
        limited = parameter.keys() & {"AllowedPattern", "AllowedValues", "MinValue"}
        assert limited or parameter["Type"] == "CommaDelimitedList", name
