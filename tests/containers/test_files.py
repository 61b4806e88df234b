"""What the Dockerfiles and compose.yaml promise that can be read off them, without building anything."""

import re

import pytest
import yaml

from tools.lambda_zip import ROOT, project_version

FOLDER = ROOT / "infra/docker"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_has_the_projects_version_and_is_not_roots(path):
    text = path.read_text(encoding="utf-8")
    assert f'org.opencontainers.image.version="{project_version()}"' in text, "it moves with pyproject.toml"
    assert re.findall(r"(?m)^FROM (\S+)", text) == ["${BASE_IMAGE}", "${BASE_IMAGE}"]
    last_stage = text[text.rindex("FROM ") :]
    assert re.findall(r"(?m)^USER (.+)$", last_stage) == ["10001:10001"]
    assert re.search(r'(?m)^ENTRYPOINT \["', last_stage), "no shell that would keep signals to itself"


@pytest.mark.parametrize("path", [*DOCKERFILES, FOLDER / "compose.yaml"], ids=lambda path: path.name)
def test_no_registry_is_named(path):
    images = re.findall(r"(?m)^(?:ARG BASE_IMAGE=|\s+image: )(\S+)$", path.read_text(encoding="utf-8"))
    assert images
    assert not [image for image in images if "." in image.partition("/")[0].partition(":")[0]]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_has_no_rights_and_bounds(name):
    service = COMPOSE["services"][name]
    assert (service["user"], service["read_only"], service["cap_drop"]) == ("10001:10001", True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert "ports" not in service
    assert service.get("network_mode") == "none" or COMPOSE["networks"][service["networks"][0]]["internal"]


def test_all_who_use_the_sockets_find_them_at_the_same_path():
    users = {name for name, service in COMPOSE["services"].items() if "run:/run/super" in service["volumes"]}
    assert users == {"cache", "coordinator", "trainer"}
    told = COMPOSE["services"]["coordinator"]["environment"]
    assert f"--set=loader.coordinator={told['SUPER_LISTEN']}" in COMPOSE["services"]["trainer"]["command"]
    assert told["SUPER_CACHE"].removeprefix("unix://") in COMPOSE["services"]["cache"]["command"]


def test_the_context_of_a_build_is_what_the_images_need():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "everything else is named"
    missing = [rule for rule in rules[1:] if rule.startswith("!") and not list(ROOT.glob(rule[1:]))]
    assert not missing
