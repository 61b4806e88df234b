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


def test_a_run_told_by_sagemakers_variables_ends_well(hosts):
    groups = [
        {"instance_group_name": "data_group", "instance_type": "ml.c5.large", "hosts": [LEADER, DATA]},
        {
            "instance_group_name": "dnn_group",
            "instance_type": "ml.g5.xlarge",
            "hosts": [TRAINER_0, TRAINER_1],
        },
    ]
    hosts.data_hosts = (LEADER, DATA)
    everyone = [*hosts.data_hosts, *hosts.training_hosts]
    hosts.start(
        "sh",
        "-c",
        'echo rank=$NODE_RANK/$NNODES@$MASTER_ADDR ranks=$NPROC_PER_NODE at=$SUPER_COORDINATOR args="$*"',
        "train.py",
        options=("--executor=local", "--no-torchrun", "--cache-bytes=64mb"),
        environment={
            "SM_HOSTS": json.dumps(everyone),
            "SM_RESOURCE_CONFIG": json.dumps({"hosts": everyone, "instance_groups": groups}),
            "SM_USER_ARGS": '["--epochs","3"]',
            "SM_NUM_GPUS": "2",
        },
        flags=False,
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


def test_failed_training_ends_every_host_with_its_exit_code(hosts):
    hosts.start("sh", "-c", "[ $NODE_RANK = 1 ] && exit 7; sleep 1000", options=BARE)
    assert set(hosts.codes().values()) == {7}
    for host in (LEADER, TRAINER_0, TRAINER_1):
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


@pytest.mark.slow
def test_a_leader_that_never_appears_is_told(hosts):
    hosts.start("true", options=(*BARE, "--start-wait-s=1"), only=(TRAINER_0,))
    assert hosts.codes() == {TRAINER_0: EXIT_NOT_READY}
    assert f"the leader did not answer {TRAINER_0} at {LEADER}:{hosts.ports['control']}" in hosts.reason(
        TRAINER_0
    )


def test_sigterm_on_every_host_lets_training_save_and_ends_all(hosts):
    hosts.start(*WAIT_FOR_EVER, options=BARE)
    begun(hosts)
    for host in hosts.processes:
        hosts.signal(host, signal.SIGTERM)
    assert set(hosts.codes().values()) == {128 + signal.SIGTERM}
    for host in hosts.training_hosts:
        assert "saved" in hosts.said(host)
        assert "received SIGTERM" in hosts.reason(host)
    assert hosts.left() == []


@pytest.mark.slow
def test_sigterm_on_one_host_ends_all(hosts):
    hosts.start(*WAIT_FOR_EVER, options=BARE)
    begun(hosts)
    hosts.signal(TRAINER_1, signal.SIGTERM)
    assert set(hosts.codes().values()) == {128 + signal.SIGTERM}
    assert all(f"{TRAINER_1} received SIGTERM" in hosts.reason(host) for host in hosts.processes)


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
def test_a_data_host_may_be_lost_where_that_was_allowed(hosts, tmp_path):
    hosts.data_hosts = (LEADER, DATA)
    go = tmp_path / "go"
    hosts.start(
        "sh",
        "-c",
        f"echo begun; until [ -e {go} ]; do sleep 0.05; done",
        options=(*BARE, "--lost-data-hosts=1"),
    )
    begun(hosts)
    hosts.signal(DATA, signal.SIGKILL)
    hosts.until_said(LEADER, "the run goes on without a data host")
    go.touch()
    codes = hosts.codes()
    assert codes.pop(DATA) == -signal.SIGKILL
    assert set(codes.values()) == {0}


def test_a_host_without_the_token_is_refused(hosts):
    token = {"SUPER_TOKEN": "a-token-for-one-test"}
    hosts.training_hosts = (TRAINER_0,)
    hosts.start("true", options=BARE, only=(LEADER,), environment=token)
    hosts.start("true", options=BARE, only=(TRAINER_0,), environment={"SUPER_TOKEN": "another-token-instead"})
    hosts.until(lambda: hosts.processes[TRAINER_0].poll() is not None, "the end of the refused host")
    hosts.signal(LEADER, signal.SIGTERM)
    assert hosts.codes() == {LEADER: 128 + signal.SIGTERM, TRAINER_0: EXIT_REFUSED}
    assert "it does not know the token" in hosts.reason(TRAINER_0)
    assert "a-token-for" not in hosts.all_said()


@pytest.mark.parametrize("wrong", [LEADER, TRAINER_1])
def test_a_host_with_wrong_settings_ends_all_with_its_reason(hosts, wrong):
    """Also where it leads, whose cache and coordinator are under way by then."""
    hosts.data_hosts, hosts.training_hosts = (), (LEADER, TRAINER_1)
    options = ("--executor=local", "--no-torchrun", "--cache-bytes=64mb", "--data-cpus=1")
    hosts.start("true", options=options, only=(wrong,), environment={"SM_NUM_GPUS": "abc"})
    hosts.start("true", options=options, only=tuple({LEADER, TRAINER_1} - {wrong}))
    assert hosts.codes() == {LEADER: EXIT_WRONG_SETTINGS, TRAINER_1: EXIT_WRONG_SETTINGS}, hosts.all_said()
    assert all("SM_NUM_GPUS is a number; not 'abc'" in hosts.reason(host) for host in hosts.processes)
    assert hosts.left() == []


@pytest.mark.slow
def test_without_data_hosts_the_first_that_trains_leads(hosts):
    hosts.data_hosts = ()
    hosts.start("true", options=(*BARE,))
    assert hosts.codes() == {TRAINER_0: 0, TRAINER_1: 0}
    assert f"the leader is {TRAINER_0}" in hosts.said(TRAINER_1)


@pytest.mark.slow
def test_a_leader_that_does_not_trust_itself_ends_at_once(hosts, certificates):
    """Its own member is refused before it could say so on any line."""
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


@pytest.mark.parametrize("wrong", ["--trainer-cpus=x", "--log-level=loud", "--unknown"])
def test_an_option_that_does_not_fit_is_the_reason_in_the_failure_file(hosts, wrong):
    hosts.start("true", options=(*BARE, wrong), only=(LEADER,))
    assert hosts.codes() == {LEADER: EXIT_WRONG_SETTINGS}
    assert wrong.partition("=")[0] in hosts.reason(LEADER)
    assert "Traceback" not in hosts.said(LEADER)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ((f"--training-hosts={TRAINER_1},{TRAINER_0}",), "--training-hosts"),
        (("--trainer-cpus=1",), "--trainer-cpus"),
        (("--master-port=1025",), "--master-port"),
    ],
)
def test_a_host_that_was_told_otherwise_than_its_leader_is_refused(hosts, told, name):
    hosts.start("true", options=BARE, only=(LEADER,))
    hosts.start("true", options=(*BARE, *told), only=(TRAINER_1,))
    hosts.until(lambda: hosts.processes[TRAINER_1].poll() is not None, "the end of the refused host")
    hosts.signal(LEADER, signal.SIGTERM)
    assert hosts.codes() == {LEADER: 128 + signal.SIGTERM, TRAINER_1: EXIT_REFUSED}
    assert f"its {name}" in hosts.reason(TRAINER_1)
