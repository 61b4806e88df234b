"""Whole runs: a cache, a coordinator, Ray, and torchrun on two hosts, whose ranks read every image once."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
from collections import Counter
from hashlib import sha256
from pathlib import Path

import psutil
import pytest

from infra.launcher import EXIT_SERVICE_FAILED
from tests.fixtures.images import expected_pixels
from tests.infra.launcher.hosts import DATA, LEADER, TRAINER_0, TRAINER_1

pytestmark = pytest.mark.slow
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'superdl[ray]'"
)

SCRIPT = str(Path(__file__).with_name("train_script.py"))
LOCAL = ("--executor=local", "--cache-bytes=128mb")
EPOCHS = 2


def begin(hosts, images, *arguments, options=LOCAL, **more):
    hosts.start(
        SCRIPT,
        "--source",
        images.as_uri(),
        "--output",
        str(hosts.directory),
        *arguments,
        options=options,
        **more,
    )


def check_every_image_once(hosts, images, epochs=EPOCHS):
    """Exactly once in each epoch over both ranks, with the pixels and labels that another decoder gives."""
    ranks = [json.loads((hosts.directory / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    expected = Counter(
        (sha256(pixels).hexdigest(), label)
        for pixels, label in expected_pixels(images, resize=32, crop=24).items()
    )
    for epoch in range(epochs):
        seen = Counter(tuple(sample) for rank in ranks for sample in rank["epochs"][epoch])
        assert seen == expected
    assert ranks[0]["weight"] == ranks[1]["weight"]
    return [rank["env"] for rank in ranks]


def coordinator_of(hosts):
    """Its oldest process; the others are its functions."""
    found = [process for process in hosts.left() if process.cmdline()[2:4] == ["-m", "superdl.coordinator"]]
    return min(found, key=psutil.Process.create_time)


def cache_of(hosts):
    title = f":{hosts.ports['cache']}"
    return next(p for p in hosts.left() if title in p.info["cmdline"][0] or p.info["name"] == "valkey-server")


@pytest.mark.parametrize("data_hosts", [(LEADER,), ()])
def test_two_hosts_train_on_every_image_once(hosts, images, data_hosts):
    hosts.data_hosts = data_hosts
    begin(hosts, images, "--epochs", str(EPOCHS))
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    told = check_every_image_once(hosts, images)
    assert [rank["RANK"] for rank in told] == ["0", "1"]
    assert {rank["WORLD_SIZE"] for rank in told} == {"2"}
    leader = [*data_hosts, TRAINER_0][0]
    assert {rank["SUPER_COORDINATOR"] for rank in told} == {f"{leader}:{hosts.ports['coordinator']}"}
    assert len({rank["TORCHELASTIC_RUN_ID"] for rank in told} - {"none"}) == 1
    assert hosts.left() == []


def test_a_script_of_ones_own_runs_by_a_jobs_hyper_parameters(hosts, tmp_path):
    config = tmp_path / "ml/input/config"
    config.mkdir(parents=True)
    script = tmp_path / "mine.py"
    script.write_text("import os, sys; print('told', sys.argv[1:], os.environ['SM_MODEL_DIR'], flush=True)")
    (config / "resourceconfig.json").write_text(json.dumps({"current_host": TRAINER_0, "hosts": [TRAINER_0]}))
    (config / "hyperparameters.json").write_text(json.dumps({"train-script": str(script), "epochs": "25"}))
    hosts.start(options=(*LOCAL, f"--config-dir={config}"), only=(TRAINER_0,), flags=False)
    assert hosts.codes() == {TRAINER_0: 0}, hosts.all_said()
    assert f"told ['--epochs', '25'] {tmp_path}/ml/model" in hosts.said(TRAINER_0)
    assert hosts.left() == []


def test_the_code_of_the_rank_that_fails_is_every_hosts(hosts, images):
    begin(hosts, images, "--fail-on-rank", "1")
    assert set(hosts.codes().values()) == {7}, hosts.all_said()
    assert f"training ended with exit code 7 on {TRAINER_1}" in hosts.reason(LEADER)
    assert hosts.left() == []


def test_sigterm_in_training_lets_every_rank_save(hosts, images):
    begin(hosts, images, "--forever")
    for rank in (0, 1):
        hosts.until((hosts.directory / f"begun-{rank}").exists, f"the first batch of rank {rank}")
    for host in hosts.processes:
        hosts.signal(host, signal.SIGTERM)
    assert set(hosts.codes().values()) == {128 + signal.SIGTERM}, hosts.all_said()
    assert all((hosts.directory / f"saved-{rank}").exists() for rank in (0, 1))
    assert hosts.left() == []


@pytest.mark.parametrize(("service", "process_of"), [("coordinator", coordinator_of), ("cache", cache_of)])
def test_a_service_that_dies_in_training_is_started_again(hosts, images, service, process_of):
    begin(hosts, images, "--epochs", "6")
    hosts.until((hosts.directory / "begun-0").exists, "the first batch of rank 0")
    process_of(hosts).kill()
    hosts.until_said(LEADER, f"the {service} ended with exit code 137.*it is started again")
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    check_every_image_once(hosts, images, epochs=6)
    assert hosts.left() == []


def test_a_service_that_does_not_start_ends_the_run(hosts, images):
    begin(hosts, images, options=(*LOCAL, "--start-wait-s=30"), environment={"SUPER_LEASE_S": "none"})
    assert set(hosts.codes().values()) == {90}, hosts.all_said()
    assert "SUPER_LEASE_S is of type float" in hosts.reason(TRAINER_0)
    assert hosts.left() == []


def test_a_run_with_tls_token_and_passwords(hosts, images, certificates):
    """On loopback nothing of it is asked for, and what is set is used. The certificate is for 127.0.0.1."""
    if not (shutil.which("valkey-server") or shutil.which("redis-server")):
        pytest.skip("no server with TLS is here: pip's have none, and none is on PATH")
    hosts.data_hosts, hosts.training_hosts = ("127.0.0.1",), (TRAINER_0, TRAINER_1)
    secrets = {"SUPER_TOKEN": "a-token-of-one-test", "SUPER_CACHE_PASSWORD": "a-password-of-one-test"}
    begin(
        hosts,
        images,
        "--epochs",
        str(EPOCHS),
        environment={
            **secrets,
            "SUPER_CACHE_USERNAME": "trainers",
            "SUPER_TLS_CERT": certificates.server.cert_file,
            "SUPER_TLS_KEY": certificates.server.key_file,
            "SUPER_COORDINATOR_CA_FILE": certificates.ca_file,
            "SUPER_CACHE_CA_FILE": certificates.ca_file,
        },
    )
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    check_every_image_once(hosts, images)
    assert f"cache rediss://127.0.0.1:{hosts.ports['cache']}" in hosts.said("127.0.0.1")
    assert not any(secret in hosts.all_said() for secret in secrets.values())


RAY = ("--executor=ray", "--cache-bytes=128mb", "--data-cpus=1")
FILES = {"SUPER_RAY_SHARED_FILES": "1"}


@needs_ray
def test_functions_run_on_data_hosts_and_on_trainers_spare_cpus(hosts, images):
    hosts.data_hosts = (LEADER, DATA)
    begin(hosts, images, "--epochs", "2", options=(*RAY, "--trainer-cpus=1"), environment=FILES)
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    check_every_image_once(hosts, images)
    for host in (DATA, *hosts.training_hosts):
        assert "Ray's node" in hosts.said(host)
    hosts.until_nothing_is_left()


def raylet_of(hosts, host):
    raylets = (process for process in hosts.left() if process.info["name"] == "raylet")
    return next(process for process in raylets if f"--node_ip_address={host}" in process.info["cmdline"])


@needs_ray
def test_a_node_that_dies_is_started_again(hosts, images):
    hosts.data_hosts = (LEADER, DATA)
    begin(hosts, images, "--epochs", "8", options=RAY, environment=FILES)
    hosts.until((hosts.directory / "begun-0").exists, "the first batch of rank 0")
    raylet_of(hosts, DATA).kill()
    hosts.until_said(DATA, "Ray's node ended with exit code .*it is started again")
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    check_every_image_once(hosts, images, epochs=8)
    hosts.until_nothing_is_left()


@needs_ray
def test_without_its_head_the_run_ends(hosts, images):
    begin(hosts, images, "--forever", options=RAY, environment=FILES)
    hosts.until((hosts.directory / "begun-0").exists, "the first batch of rank 0")
    next(process for process in hosts.left() if process.info["name"] == "gcs_server").kill()
    assert set(hosts.codes().values()) == {EXIT_SERVICE_FAILED}, hosts.all_said()
    assert "Ray's head ended with exit code" in hosts.reason(LEADER)
    hosts.until_nothing_is_left()
