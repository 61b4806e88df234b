"""One command runs all hosts of a run on this machine: it gives the run's exit code, and leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from infra.launcher.local import free_ports, local_hosts, main, parser
from superdl.super_wire.errors import ConfigError
from tests.infra.launcher.hosts import LOCAL

# With a coordinator that is there already, nothing but training is started.
BARE = ("--data-hosts=1", "--training-hosts=2", "--no-torchrun", "--coordinator=127.0.0.1:1")
FOR_EVER = (
    "echo begun $NODE_RANK; trap 'echo saved $NODE_RANK; exit 1' TERM; setsid sleep 1000 & sleep 1000 & wait"
)


def made(*options, cores=(), gpus=()):
    return local_hosts(parser().parse_args(options), cores, gpus)


def shares(*options, cores):
    return [(host.name, list(host.cores)) for host in made(*options, cores=cores)]


@pytest.mark.usefixtures("hosts")  # for its being skipped where there is one loopback address
class TestShares:
    def test_cores_are_divided_and_what_is_left_is_shared_by_the_others(self):
        one_each = ("--data-hosts=1", "--training-hosts=1")
        assert shares(*one_each, cores=[0, 1]) == [("data 127.0.0.2", []), ("training 127.0.0.3", [])]
        assert shares(*one_each, "--training-cores=1", cores=[4, 7]) == [
            ("data 127.0.0.2", [7]),
            ("training 127.0.0.3", [4]),
        ]
        assert shares("--data-hosts=2", "--training-cores=2", cores=range(8)) == [
            ("data 127.0.0.2", [2, 3, 4, 5, 6, 7]),
            ("data 127.0.0.3", [2, 3, 4, 5, 6, 7]),
            ("training 127.0.0.4", [0, 1]),
        ]
        assert shares("--data-hosts=1", "--training-hosts=2", "--data-cores=1", cores=range(4)) == [
            ("data 127.0.0.2", [0]),
            ("training 127.0.0.3", [1, 2, 3]),
            ("training 127.0.0.4", [1, 2, 3]),
        ]
        assert shares("--training-cores=1", cores=[0, 1]) == [("training 127.0.0.2", [0])]

    @pytest.mark.parametrize(
        ("options", "cores", "why"),
        [
            (("--training-cores=2",), 2, r"2 cores .* and one at least for the others; 2 can be used"),
            (("--training-cores=2", "--data-cores=1"), 2, "3 cores are asked for"),
            (("--training-cores=-1",), 2, "not negative"),
            (("--training-cores=1",), 0, "leave --training-cores and --data-cores out"),
        ],
    )
    def test_more_cores_than_there_are_is_refused(self, options, cores, why):
        with pytest.raises(ConfigError, match=why):
            made("--data-hosts=1", *options, cores=range(cores))

    def test_gpus_are_divided_where_each_host_can_have_one(self):
        def seen(training, gpus):
            return [host.gpus for host in made(f"--training-hosts={training}", gpus=gpus) if host.trains]

        assert seen(2, ["0", "1", "2", "3"]) == [("0", "1"), ("2", "3")]
        assert seen(2, ["0"]) == [None, None]
        assert seen(1, ["0", "1"]) == [None]

    def test_hosts_that_share_cores_share_their_threads_too(self):
        def threads(*options):
            return [host.threads for host in made("--data-hosts=1", *options, cores=range(8))]

        assert threads("--training-hosts=2") == [0, 4, 4]
        assert threads("--training-hosts=2", "--data-cores=2") == [0, 3, 3]
        assert threads("--training-hosts=2", "--training-cores=2") == [0, 0, 0], "they see their own cores"
        assert threads() == [0, 0]

    def test_ports_are_different_ones(self):
        ports = free_ports()
        assert len(set(ports.values())) == len(ports) == 5
        assert all(name.endswith("_port") for name in ports)


def test_a_run_ends_with_its_code_and_each_host_has_its_cores(hosts):
    script = (
        "import json, os; told = {name: os.environ[name] for name in ('NODE_RANK', 'SUPER_COORDINATOR')}; "
        "print(json.dumps({**told, 'cores': sorted(os.sched_getaffinity(0))}))"
    )
    cores = sorted(os.sched_getaffinity(0))
    options = ("--data-hosts=1", "--no-torchrun", "--executor=local", "--cache-bytes=64mb")
    options += ("--training-cores=1",) if len(cores) > 1 else ()
    hosts.start_local("python3", "-c", script, options=options)
    assert hosts.codes() == {LOCAL: 0}, hosts.said(LOCAL)
    told = json.loads(re.search(r"(?m)^\[training 127.0.0.3\] (\{.*\})$", hosts.said(LOCAL))[1])
    assert told == {
        "NODE_RANK": "0",
        "SUPER_COORDINATOR": f"127.0.0.2:{hosts.ports['coordinator']}",
        "cores": cores[:1],
    }
    assert re.search(r"(?m)^\[data 127.0.0.2\] .*the cache is ready", hosts.said(LOCAL))
    assert hosts.left() == []


def test_the_code_of_the_host_that_fails_is_the_runs(hosts):
    hosts.start_local("sh", "-c", "[ $NODE_RANK = 1 ] && exit 7; sleep 1000", options=BARE)
    assert hosts.codes() == {LOCAL: 7}, hosts.said(LOCAL)
    assert "training ended with exit code 7 on 127.0.0.4" in hosts.said(LOCAL)
    assert hosts.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_lets_training_save_and_ends_every_host(hosts, number):
    hosts.start_local("sh", "-c", FOR_EVER, options=BARE)
    for rank in (0, 1):
        hosts.until_said(LOCAL, f"begun {rank}")
    hosts.signal(LOCAL, number)
    assert hosts.codes() == {LOCAL: 128 + number}, hosts.said(LOCAL)
    for rank in (0, 1):
        assert f"saved {rank}" in hosts.said(LOCAL)
    assert hosts.left() == []


@pytest.mark.slow
def test_who_asks_twice_does_not_wait_for_training(hosts):
    hosts.start_local(
        "sh", "-c", "trap '' TERM; echo begun $NODE_RANK; while :; do sleep 1000; done", options=BARE
    )
    for rank in (0, 1):
        hosts.until_said(LOCAL, f"begun {rank}")
    hosts.signal(LOCAL, signal.SIGINT)
    hosts.until_said(LOCAL, "SIGTERM: the run is to end")
    hosts.signal(LOCAL, signal.SIGINT)
    assert hosts.codes() == {LOCAL: 128 + signal.SIGINT}
    assert hosts.left() == []


def test_nothing_stays_when_it_is_killed(hosts):
    hosts.start_local("sh", "-c", FOR_EVER, options=BARE)
    for rank in (0, 1):
        hosts.until_said(LOCAL, f"begun {rank}")
    hosts.signal(LOCAL, signal.SIGKILL)
    assert hosts.codes() == {LOCAL: -signal.SIGKILL}
    hosts.until_nothing_is_left()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--training-hosts=0",), "at least one host trains"),
        (("--host=127.0.0.2",), "--host is for a launcher of one host"),
        (("--no-such-option",), "--no-such-option"),
        (("--data-hosts=many",), "invalid int value: 'many'"),
        (("--executor=ray", "--control-port=0"), "control_port is from 1"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(options, why, capsys):
    assert main([*options, "--", "true"]) == 2
    assert why in capsys.readouterr().err


def test_a_run_without_a_command_is_refused(capsys):
    assert main(["--training-hosts", "2"]) == 2
    assert "the training command comes after --" in capsys.readouterr().err


@pytest.mark.slow
def test_a_spec_is_trained_by_two_hosts(hosts, images, tmp_path):
    sets = {
        "epochs": 1,
        "data.train": images,
        "loader.batch_size": 16,
        "recipe.resize": 32,
        "recipe.crop": 24,
        "output": tmp_path / "runs",
    }
    hosts.start_local(
        *("-m", "superdl.main", "run", "digits"),
        *(word for name, value in sets.items() for word in ("--set", f"{name}={value}")),
        options=("--training-hosts=2", "--executor=local", "--cache-bytes=64mb"),
    )
    assert hosts.codes() == {LOCAL: 0}, hosts.said(LOCAL)
    [report] = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/report.json")]
    assert (report["status"], report["ranks"], report["strategy"]) == ("finished", 2, "ddp")
    assert hosts.left() == []
