"""Launchers of several hosts begin together and end together, with one exit code, and leave nothing behind.

Training is a small program here; torchrun and Ray are in test_training_run.py.
"""

from __future__ import annotations

import json
import signal
import socket

import pytest

from infra.launcher import (
    EXIT_HOST_LOST,
    EXIT_LEADER_LOST,
    EXIT_NOT_READY,
    EXIT_REFUSED,
    EXIT_SERVICE_FAILED,
    EXIT_WRONG_SETTINGS,
)
from tests.infra.launcher.hosts import DATA, LEADER, TRAINER_0, TRAINER_1

# The quickest run: with a coordinator that is there already, nothing but training is started.
BARE = ("--no-torchrun", "--coordinator=127.0.0.1:1")
WAIT_FOR_EVER = ("sh", "-c", "echo begun; trap 'echo saved; exit 1' TERM; sleep 1000 & wait")
WITH_A_STRAY = ("sh", "-c", "setsid sleep 1000 & echo begun; wait")


def begun(hosts):
    for host in hosts.training_hosts:
        hosts.until_said(host, "(?m)^begun$")


@pytest.mark.slow
def test_a_run_told_by_sagemakers_files_ends_well(hosts, tmp_path):
    groups = {"data_group": [LEADER, DATA], "dnn_group": [TRAINER_0, TRAINER_1]}
    described = [{"instance_group_name": name, "hosts": members} for name, members in groups.items()]
    everyone = [LEADER, DATA, TRAINER_0, TRAINER_1]
    for host in everyone:
        config = tmp_path / host
        config.mkdir()
        told = {"current_host": host, "hosts": everyone, "instance_groups": described}
        (config / "resourceconfig.json").write_text(json.dumps(told))
        (config / "hyperparameters.json").write_text('{"epochs": "3"}')
        hosts.start(
            "sh",
            "-c",
            'echo rank=$NODE_RANK/$NNODES@$MASTER_ADDR ranks=$NPROC_PER_NODE at=$SUPER_COORDINATOR args="$*"',
            "train.py",
            options=("--executor=local", "--no-torchrun", "--cache-bytes=64mb", f"--config-dir={config}"),
            only=(host,),
            flags=False,
            environment={"CUDA_VISIBLE_DEVICES": "0,1"},
        )
    assert hosts.codes() == dict.fromkeys(everyone, 0), hosts.all_said()
    coordinator = f"{LEADER}:{hosts.ports['coordinator']}"
    for rank, host in enumerate(hosts.training_hosts):
        told = f"rank={rank}/2@{TRAINER_0} ranks=2 at={coordinator} args=--epochs 3\n"
        assert told in hosts.said(host)
    assert "the cache is ready" in hosts.said(LEADER)
    assert f"serving on {coordinator}" in hosts.said(LEADER)
    assert not hosts.failure_file(LEADER).exists()
    assert hosts.left() == []


@pytest.mark.parametrize("data_hosts", [(LEADER,), pytest.param((), marks=pytest.mark.slow)])
def test_failed_training_ends_every_host_with_its_exit_code(hosts, data_hosts):
    hosts.data_hosts = data_hosts
    hosts.start("sh", "-c", "[ $NODE_RANK = 1 ] && exit 7; sleep 1000", options=BARE)
    assert set(hosts.codes().values()) == {7}
    for host in (*data_hosts, TRAINER_0, TRAINER_1):
        assert hosts.reason(host) == f"training ended with exit code 7 on {TRAINER_1}\n"
    assert hosts.left() == []


@pytest.mark.parametrize(
    ("killed", "code", "reason"),
    [
        (TRAINER_1, EXIT_HOST_LOST, f"{TRAINER_1} has closed the connection"),
        pytest.param(
            DATA, EXIT_HOST_LOST, f"{DATA} has closed the connection", marks=pytest.mark.slow, id="data host"
        ),
        (LEADER, EXIT_LEADER_LOST, f"the leader {LEADER} is lost: it has closed the connection"),
    ],
)
def test_a_host_that_dies_ends_the_run_on_all_others(hosts, killed, code, reason):
    hosts.data_hosts = (LEADER, DATA)
    hosts.start(*WITH_A_STRAY, options=BARE)
    begun(hosts)
    hosts.signal(killed, signal.SIGKILL)
    codes = hosts.codes()
    assert codes.pop(killed) == -signal.SIGKILL
    assert set(codes.values()) == {code}, hosts.all_said()
    assert all(reason in hosts.reason(host) for host in codes)
    hosts.until_nothing_is_left()  # nor of the host whose launcher could not end anything any more


@pytest.mark.slow
def test_a_host_that_says_nothing_any_more_is_lost(hosts):
    hosts.start(*WITH_A_STRAY, options=(*BARE, "--silence-s=3"))
    begun(hosts)
    hosts.signal(TRAINER_1, signal.SIGSTOP)
    hosts.until(lambda: hosts.processes[LEADER].poll() is not None, "the end of the leader")
    hosts.signal(TRAINER_1, signal.SIGCONT)
    codes = hosts.codes()
    assert codes[LEADER] == codes[TRAINER_0] == EXIT_HOST_LOST
    assert codes[TRAINER_1] in {EXIT_HOST_LOST, EXIT_LEADER_LOST}
    assert f"{TRAINER_1} has said nothing for 3 s" in hosts.reason(LEADER)
    hosts.until_nothing_is_left()


def test_a_host_that_never_appears_is_named(hosts):
    hosts.start("true", options=(*BARE, "--start-wait-s=2"), only=(LEADER, TRAINER_0))
    assert set(hosts.codes().values()) == {EXIT_NOT_READY}
    assert hosts.reason(TRAINER_0) == f"{TRAINER_1} did not appear within 2 s (--start-wait-s)\n"


@pytest.mark.parametrize(
    "signalled", [pytest.param((LEADER, TRAINER_0, TRAINER_1), marks=pytest.mark.slow), (TRAINER_1,)]
)
def test_sigterm_lets_training_save_and_ends_all(hosts, signalled):
    hosts.start(*WAIT_FOR_EVER, options=BARE)
    begun(hosts)
    for host in signalled:
        hosts.signal(host, signal.SIGTERM)
    assert set(hosts.codes().values()) == {128 + signal.SIGTERM}
    for host in hosts.training_hosts:
        assert "saved" in hosts.said(host)
        assert "received SIGTERM" in hosts.reason(host)
    assert hosts.left() == []


def test_training_that_will_not_end_is_killed(hosts):
    hosts.training_hosts = (TRAINER_0,)
    hosts.start(
        "sh", "-c", "trap '' TERM; echo begun; sleep 1000 & wait; wait", options=(*BARE, "--stop-wait-s=0.2")
    )
    begun(hosts)
    hosts.signal(LEADER, signal.SIGTERM)
    assert set(hosts.codes().values()) == {128 + signal.SIGTERM}
    assert hosts.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [LEADER, TRAINER_1])
def test_a_host_that_cannot_start_a_part_ends_all_with_its_reason(hosts, wrong):
    hosts.data_hosts, hosts.training_hosts = (), (LEADER, TRAINER_1)
    password = {"SUPER_CACHE_USERNAME": "a name", "SUPER_CACHE_PASSWORD": "x" * 16}
    options = ("--executor=local", "--no-torchrun", "--cache-bytes=64mb", "--data-cpus=1")
    if wrong == LEADER:
        hosts.start("true", options=options, environment=password)
        code, reason = EXIT_WRONG_SETTINGS, "SUPER_CACHE_USERNAME has a space"
    else:
        hosts.start("true", options=options, only=(LEADER,))
        hosts.start("/nonexistent", options=options, only=(wrong,))
        code, reason = 127, f"training ended with exit code 127 on {TRAINER_1}"
    assert hosts.codes() == {LEADER: code, TRAINER_1: code}, hosts.all_said()
    assert all(reason in hosts.reason(host) for host in hosts.processes)
    assert hosts.left() == []


@pytest.mark.slow
def test_a_leader_that_does_not_trust_itself_ends_at_once(hosts, certificates):
    """Its own member is refused before it could say so on any channel."""
    hosts.start(
        "true",
        options=BARE,
        only=(LEADER,),
        environment={
            "SUPER_TLS_CERT": certificates.elsewhere.cert_file,
            "SUPER_TLS_KEY": certificates.elsewhere.key_file,
            "SUPER_COORDINATOR_CA_FILE": certificates.ca_file,
        },
    )
    assert hosts.codes() == {LEADER: EXIT_REFUSED}
    assert "cannot agree on TLS" in hosts.reason(LEADER)


@pytest.mark.slow
def test_a_port_that_is_taken_is_named(hosts):
    with socket.create_server((LEADER, hosts.ports["control"])):
        hosts.start("true", options=BARE, only=(LEADER,))
        codes = hosts.codes()
    assert codes == {LEADER: EXIT_SERVICE_FAILED}
    assert f"the leader cannot listen on {LEADER}:{hosts.ports['control']}" in hosts.reason(LEADER)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--cache=redis://a",), "a running coordinator has its own cache"),
        (("--data-hosts=192.0.2.1", "--host=192.0.2.1"), "a token (SUPER_TOKEN or SUPER_TOKEN_FILE"),
    ],
    ids=["a cache too much", "beyond loopback unguarded"],
)
def test_what_does_not_fit_is_the_reason_in_the_failure_file(hosts, options, why):
    hosts.start("true", options=(*BARE, *options), only=(LEADER,))
    assert hosts.codes() == {LEADER: EXIT_WRONG_SETTINGS}
    assert why in hosts.reason(LEADER)
    assert "Traceback" not in hosts.said(LEADER)


@pytest.mark.parametrize("wrong", ["a token", "an option"])
def test_a_host_that_was_told_otherwise_than_its_leader_is_refused(hosts, wrong):
    token, other = {"SUPER_TOKEN": "a-token-for-one-test"}, {"SUPER_TOKEN": "another-token-instead"}
    options = (*BARE, "--training-hosts", f"{TRAINER_1},{TRAINER_0}") if wrong == "an option" else BARE
    hosts.start("true", options=BARE, only=(LEADER,), environment=token)
    environment = other if wrong == "a token" else token
    hosts.start("true", options=options, only=(TRAINER_0,), environment=environment)
    hosts.until(lambda: hosts.processes[TRAINER_0].poll() is not None, "the end of the refused host")
    hosts.signal(LEADER, signal.SIGTERM)
    assert hosts.codes() == {LEADER: 128 + signal.SIGTERM, TRAINER_0: EXIT_REFUSED}
    told = {"a token": "it does not know the token", "an option": "another version, hosts or options"}
    assert told[wrong] in hosts.reason(TRAINER_0)
    assert "a-token-for" not in hosts.all_said()
