"""The launcher: hosts and scripts from SageMaker's settings, and whole runs on simulated hosts."""

import ast
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid

import psutil
import pytest

from infra.launcher import Run, run_of
from superdl.coordinator.core import Plan
from superdl.super_wire.errors import ConfigError
from tests.fixtures.ports import free_port
from tests.fixtures.tls_front import TlsFront
from tests.fixtures.workers import until
from tests.integration.torchrun import RANK, ROOT, in_order, planned, written

PORTS = (50051, 50052, 29500)
HOSTS = ["algo-10", "algo-1", "algo-2"]
GROUPS = [
    {"instance_group_name": "data_group", "instance_type": "ml.c5.xlarge", "hosts": ["algo-10", "algo-2"]},
    {"instance_group_name": "dnn_group", "instance_type": "ml.g5.xlarge", "hosts": ["algo-1"]},
]
VARIABLES = {
    "SM_HOSTS": json.dumps(HOSTS),
    "SM_CURRENT_HOST": "algo-1",
    "SM_INSTANCE_GROUPS_DICT": json.dumps({str(group["instance_group_name"]): group for group in GROUPS}),
    "SM_NUM_GPUS": "8",
    "TRAINING_JOB_NAME": "mine",
}
WAIT_S = 120.0
_MARK = "SUPER_TEST_RUN"
# Ranks that read for ever, and save at SIGTERM, or fail at once.
STOPS = """
import os, signal, sys
from pathlib import Path
import torch.distributed
from superdl import Recipe, SuperDataset, SuperLoader

source, output, failing = sys.argv[1:]
torch.distributed.init_process_group("gloo")
rank = os.environ["RANK"]

def save(*_):
    Path(output, f"saved-{rank}").touch()
    raise SystemExit(1)

signal.signal(signal.SIGTERM, save)
loader = SuperLoader(SuperDataset(source, Recipe.image(resize=32, crop=24)), batch_size=16, shuffle=True)
while True:
    for _ in loader:
        Path(output, f"begun-{rank}").touch()
        if rank == failing:
            raise SystemExit(7)
"""


def test_hosts_and_script_come_from_sagemakers_variables_or_its_files(tmp_path):
    by_variables = run_of(["--train-script", "train.py", "--host", "x"], VARIABLES, tmp_path)
    command = ("train.py", "--host", "x")
    assert by_variables == Run(("algo-2", "algo-10"), ("algo-1",), "algo-1", 8, "mine", command, PORTS)
    assert (by_variables.leader, by_variables.coordinator) == ("algo-2", "algo-2:50051")
    for name, content in {
        "resourceconfig": {"current_host": "algo-1", "hosts": HOSTS, "instance_groups": GROUPS},
        "hyperparameters": {"train-script": '"train.py"', "host": "x", "sagemaker_region": '"y"'},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    few = {name: VARIABLES[name] for name in ("SM_NUM_GPUS", "TRAINING_JOB_NAME")}
    assert run_of([], few, tmp_path) == by_variables


def test_hosts_are_named_by_options_where_the_script_comes_after_dashes(tmp_path):
    named = ["--data-hosts=a", "--training-hosts=b,c", "--host=c", "--", "-m", "mine", "--host", "x"]
    run = run_of(named, {"SM_NUM_GPUS": "0"}, tmp_path)
    assert run == Run(("a",), ("b", "c"), "c", 1, "superdl", ("-m", "mine", "--host", "x"), PORTS)
    alone = run_of(["--training-hosts=b", "--host=b", "--", "x.py"], {"SM_NUM_GPUS": "2"}, tmp_path)
    assert (alone.coordinator, alone.ranks) == ("", 2)
    assert run_of(["--training-hosts=b,c", "--host=c", "--", "x.py"], {}, tmp_path).coordinator == "b:50051"


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        ([], {}, "no training script"),
        (["--epochs", "2"], {}, "no training script"),
        (["--"], {}, "no training script"),
        (["--", "x.py"], {"SM_CURRENT_HOST": "other"}, "this host is 'other'"),
        (
            ["--", "x.py"],
            {"SM_HOSTS": '["algo-2", "algo-10"]'},
            r"training hosts \[\]: at least one host must",
        ),
        (["--data-hosts=a", "--training-hosts=b", "--host=c", "--", "x.py"], {}, "this host is 'c'"),
    ],
)
def test_what_is_missing_is_named(tmp_path, arguments, changes, words):
    with pytest.raises(ConfigError, match=words):
        run_of(arguments, VARIABLES | changes, tmp_path)


def test_the_examples_for_clusters_are_programs_that_start_the_launcher():
    """SageMaker's SDK and Slurm are not here: this says no more than that they can be read."""
    slurm, job = (ROOT / "examples" / name for name in ("slurm.sh", "sagemaker_job.py"))
    subprocess.run([shutil.which("bash") or "bash", "-n", slurm], check=True)
    texts = {node.value for node in ast.walk(ast.parse(job.read_text())) if isinstance(node, ast.Constant)}
    assert {"infra.launcher", "train-script", "data_group"} <= texts


class LocalRun:
    """The hosts of a run, played on this machine; ``words`` are a script that trains one pass of epochs."""

    def __init__(self, directory, images):
        self.directory, self.images = directory, images
        self.log = directory / "log"
        self.mark = uuid.uuid4().hex

    def words(self, epochs):
        settings = {"source": self.images.as_uri(), "out": str(self.directory), "batch_size": 16}
        return [str(RANK), json.dumps(settings | {"passes": [{"epochs": epochs}]})]

    def stops(self, failing=""):
        """A script that ends by failing in this rank, or by a signal."""
        (self.directory / "stops.py").write_text(STOPS)
        return [str(self.directory / "stops.py"), self.images.as_uri(), str(self.directory), failing]

    def start(self, *words, **variables):
        own = {"SUPER_CACHE_BYTES": "128mb", "OMP_NUM_THREADS": "1", _MARK: self.mark}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, **own, **variables},
            )

    def local(self, options, script):
        """Start all hosts at once."""
        return self.start("infra.local_hosts", *options.split(), "--", *script)

    def ended(self, *processes):
        """Wait, bounded, for the end; the exit codes. Nothing may be left."""
        codes = [process.wait(WAIT_S) for process in processes]
        until(lambda: not self.left(), WAIT_S)
        return codes

    def said(self):
        """What all hosts have printed."""
        return self.log.read_text(errors="replace")

    def left(self):
        """Processes of the run that are still there, but for a cache server, which hides its environment."""
        processes = psutil.process_iter(["environ"])
        return [process for process in processes if (process.info["environ"] or {}).get(_MARK) == self.mark]

    def check_every_image_once(self, epochs):
        """Over both ranks, in the order of the plan."""
        ranks = written(self.directory, 2)
        plan = Plan(size=150, batch_size=16, replicas=2, seed=1, shuffle=True, drop_last=False)
        expected = [entry for epoch in range(epochs) for entry in planned(self.images, plan, epoch)]
        assert in_order([rank["passes"][0] for rank in ranks]) == expected
        assert ranks[0]["agreed"] == ranks[1]["agreed"]


@pytest.fixture
def run(tmp_path, images):
    run = LocalRun(tmp_path, images)
    yield run
    for process in run.left():
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("data", [2, 0])
def test_two_hosts_train_on_every_image_once(run, data):
    process = run.local(f"--training 2 --data {data}", run.words(epochs=2))
    assert run.ended(process) == [0], run.said()
    run.check_every_image_once(2)
    for host in range(2, 2 + data):
        assert f"worker 127.0.0.{host} connected" in run.said()


@pytest.mark.slow
def test_the_code_of_the_rank_that_fails_is_every_hosts(run):
    assert run.ended(run.local("--data 2", run.stops(failing="0"))) == [7], run.said()


@pytest.mark.slow
def test_sigterm_lets_every_rank_save(run):
    process = run.local("--training 2 --data 1", run.stops())
    until(lambda: all((run.directory / f"begun-{rank}").exists() for rank in (0, 1)), WAIT_S)
    process.send_signal(signal.SIGTERM)
    assert run.ended(process) == [128 + signal.SIGTERM], run.said()
    assert all((run.directory / f"saved-{rank}").exists() for rank in (0, 1))


def own_address():
    """Return an address of this machine beyond loopback, or an empty string."""
    several = [address for addresses in psutil.net_if_addrs().values() for address in addresses]
    own = (each.address for each in several if each.family == socket.AF_INET)
    return next((address for address in own if not address.startswith("127.")), "")


@pytest.mark.slow
def test_beyond_loopback_hosts_have_a_token_and_tls(run, certificates, valkey):
    """The data host has this machine's own address, and its certificate another name."""
    address = own_address()
    if not address:
        pytest.skip("this machine has no address but loopback's")
    ports = ",".join(str(free_port()) for _ in range(3))
    with TlsFront(valkey.unix_url.removeprefix("unix://"), certificates) as front:
        environment = {
            "SUPER_TOKEN": "a-token-of-one-test",
            "SUPER_TLS_CERT": certificates.server.cert_file,
            "SUPER_TLS_KEY": certificates.server.key_file,
            "SUPER_COORDINATOR_CA_FILE": certificates.ca_file,
            "SUPER_COORDINATOR_NAME": "localhost",
            "SUPER_CACHE_CA_FILE": certificates.ca_file,
            "SUPER_CACHE": f"rediss://127.0.0.1:{front.port}",
            "SUPER_FILE_ROOTS": str(run.directory.parent),
            "SUPER_SHARED_FILES": "1",
            "SUPER_LAUNCHER_PORTS": ports,
            "SM_NUM_GPUS": "2",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        hosts = ("infra.launcher", f"--data-hosts={address}", "--training-hosts=127.0.0.1")
        words = ("--", *run.words(epochs=1))
        processes = [
            run.start(*hosts, f"--host={host}", *words, **environment) for host in (address, "127.0.0.1")
        ]
        assert run.ended(*processes) == [0, 0], run.said()
    run.check_every_image_once(1)
    assert environment["SUPER_TOKEN"] not in run.said()
