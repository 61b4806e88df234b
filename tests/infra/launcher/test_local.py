"""One command runs all hosts of a run on this machine: it gives the run's exit code, and leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from infra.launcher.local import local_hosts, main, parser
from superdl.super_wire.errors import ConfigError
from tests.infra.launcher.hosts import LOCAL

# With a coordinator that is there already, nothing but training is started.
BARE = ("--data-hosts=1", "--training-hosts=2", "--no-torchrun", "--coordinator=127.0.0.1:1")
FOR_EVER = (
    "trap 'echo saved $NODE_RANK; exit 1' TERM; echo begun $NODE_RANK; setsid sleep 1000 & sleep 1000 & wait"
)


def made(*options, cores=(), gpus=()):
    return local_hosts(parser().parse_args(options), cores, gpus)


@pytest.mark.parametrize(
    ("options", "cores", "shares"),
    [
        (["--data-hosts=1"], 2, {"data 127.0.0.2": [], "training 127.0.0.3": []}),
        (["--data-hosts=1", "--training-cores=1"], 2, {"data 127.0.0.2": [1], "training 127.0.0.3": [0]}),
        (
            ["--data-hosts=2", "--training-cores=2"],
            5,
            {"data 127.0.0.2": [2, 3, 4], "data 127.0.0.3": [2, 3, 4], "training 127.0.0.4": [0, 1]},
        ),
        (
            ["--data-hosts=1", "--training-hosts=2", "--data-cores=1"],
            3,
            {"data 127.0.0.2": [0], "training 127.0.0.3": [1, 2], "training 127.0.0.4": [1, 2]},
        ),
    ],
)
def test_cores_are_divided_and_what_is_left_is_shared_by_the_others(options, cores, shares):
    assert {host.name: list(host.cores) for host in made(*options, cores=range(cores))} == shares


@pytest.mark.parametrize(
    ("options", "cores", "why"),
    [
        (("--training-cores=2",), 2, r"2 cores .* and one at least for the others; 2 can be used"),
        (("--training-cores=2", "--data-cores=1"), 2, "3 cores are asked for"),
        (("--training-cores=-1",), 2, "cores are asked for"),
    ],
)
def test_more_cores_than_there_are_is_refused(options, cores, why):
    with pytest.raises(ConfigError, match=why):
        made("--data-hosts=1", *options, cores=range(cores))


def test_gpus_and_threads_are_divided_among_hosts_that_train():
    def seen(*options, gpus=()):
        return [(host.gpus, host.threads) for host in made(*options, cores=range(8), gpus=gpus)]

    assert seen("--training-hosts=2", gpus="0123") == [(("0", "1"), 4), (("2", "3"), 4)]
    assert seen("--training-hosts=2", gpus="0") == [(None, 4), (None, 4)]
    assert seen(gpus="01") == [(None, 0)]
    assert seen("--training-hosts=2", "--training-cores=2") == [(None, 0), (None, 0)]


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


@pytest.mark.slow
def test_the_code_of_the_host_that_fails_is_the_runs(hosts):
    hosts.start_local("sh", "-c", "[ $NODE_RANK = 1 ] && exit 7; sleep 1000", options=BARE)
    assert hosts.codes() == {LOCAL: 7}, hosts.said(LOCAL)
    assert "training ended with exit code 7 on 127.0.0.4" in hosts.said(LOCAL)
    assert hosts.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_signal_lets_training_save_and_a_kill_leaves_nothing(hosts, number):
    hosts.start_local("sh", "-c", FOR_EVER, options=BARE)
    for rank in (0, 1):
        hosts.until_said(LOCAL, f"begun {rank}")
    hosts.signal(LOCAL, number)
    assert hosts.codes() == {LOCAL: 128 + number if number == signal.SIGINT else -number}, hosts.said(LOCAL)
    if number == signal.SIGINT:
        assert all(f"saved {rank}" in hosts.said(LOCAL) for rank in (0, 1))
    hosts.until_nothing_is_left()


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


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--training-hosts=0", "--", "true"], "at least one host trains"),
        (["--host=127.0.0.2", "--", "true"], "--host is for a launcher of one host"),
        (["--no-such-option", "--", "true"], "--no-such-option"),
        (["--data-hosts=many", "--", "true"], "invalid int value: 'many'"),
        (["--control-port=0", "--", "true"], "--control-port: from 1"),
        (["--training-hosts", "2"], "the training command comes after --"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(words, why, capsys):
    assert main(words) == 2
    assert why in capsys.readouterr().err
