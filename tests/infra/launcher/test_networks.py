"""Launchers in network namespaces, each with an address of its own on a switch of their own: what is beyond
loopback is refused unless it is guarded or said to be, and a cable that is pulled is noticed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid

import pytest

from infra.launcher import EXIT_HOST_LOST, EXIT_LEADER_LOST, EXIT_WRONG_SETTINGS
from tests.fixtures.certificates import _Authority
from tests.infra.launcher.test_training_run import LOCAL, begin, check_every_image_once, needs_ray

pytestmark = pytest.mark.slow
IP = shutil.which("ip") or ""
SERVER_WITH_TLS = shutil.which("valkey-server") or shutil.which("redis-server")
ADDRESSES = LEADER, TRAINER_0, TRAINER_1 = "10.83.0.1", "10.83.0.2", "10.83.0.3"


class Switch:
    """A namespace with a bridge, and one for each address, plugged into it."""

    def __init__(self):
        self.name = f"super-{uuid.uuid4().hex[:8]}"
        self.ip("netns", "add", self.name)
        self.ip("-n", self.name, "link", "add", "bridge", "type", "bridge")
        self.ip("-n", self.name, "link", "set", "bridge", "up")
        for address in ADDRESSES:
            host, port = self.host(address), self.port(address)
            self.ip("netns", "add", host)
            self.ip(
                "-n", self.name, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host
            )
            self.ip("-n", self.name, "link", "set", port, "master", "bridge", "up")
            self.ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self.ip("-n", host, "link", "set", device, "up")

    def ip(self, *words):
        subprocess.run([IP, *words], check=True, capture_output=True, timeout=30)

    def host(self, address):
        return f"{self.name}-{address.rpartition('.')[2]}"

    def port(self, address):
        return f"port{address.rpartition('.')[2]}"

    def inside(self, address):
        """The words before a command that is to run there."""
        return (IP, "netns", "exec", self.host(address))

    def pull(self, address):
        """No packet more comes or goes, and nobody is told."""
        self.ip("-n", self.name, "link", "set", self.port(address), "nomaster")

    def close(self):
        for name in (*map(self.host, ADDRESSES), self.name):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.ip("netns", "delete", name)


@pytest.fixture
def switch(hosts):
    if os.geteuid() or not IP:
        pytest.skip("network namespaces need root and iproute2")
    try:
        made = Switch()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode(errors='replace')}")
    hosts.data_hosts, hosts.training_hosts, hosts.inside = (LEADER,), (TRAINER_0, TRAINER_1), made.inside
    yield made
    hosts.close()
    made.close()


@needs_ray
def test_hosts_with_addresses_of_their_own_train_together(hosts, switch, images):
    roots = {"SUPER_FILE_ROOTS": str(images), "SUPER_RAY_SHARED_FILES": "1"}
    options = ("--cache-bytes=128mb", "--data-cpus=1", "--trainer-cpus=1", "--insecure")
    begin(hosts, images, "--epochs", "2", options=options, environment=roots)
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    check_every_image_once(hosts, images)
    for host in ADDRESSES:
        assert "INSECURE: without a token" in hosts.said(host)
    for host in hosts.training_hosts:
        assert "Ray's node is ready" in hosts.said(host)
    hosts.until_nothing_is_left()


@needs_ray
@pytest.mark.skipif(
    not SERVER_WITH_TLS, reason="no server with TLS is here: pip's have none, and none is on PATH"
)
def test_with_tls_token_and_password_everywhere_nothing_is_insecure(hosts, switch, images, tmp_path):
    authority = _Authority(tmp_path, "authority")
    pair = authority.sign("hosts", *ADDRESSES, "127.0.0.1")
    begin(
        hosts,
        images,
        *("--epochs", "2"),
        options=("--cache-bytes=128mb", "--data-cpus=1", "--trainer-cpus=1"),
        environment={
            "SUPER_FILE_ROOTS": str(images),
            "SUPER_RAY_SHARED_FILES": "1",
            "SUPER_TOKEN": "a-token-of-one-test",
            "SUPER_CACHE_PASSWORD": "a-password-of-one-test",
            "SUPER_TLS_CERT": pair.cert_file,
            "SUPER_TLS_KEY": pair.key_file,
            "SUPER_COORDINATOR_CA_FILE": authority.file,
            "SUPER_CACHE_CA_FILE": authority.file,
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": pair.cert_file,
            "RAY_TLS_SERVER_KEY": pair.key_file,
            "RAY_TLS_CA_CERT": authority.file,
        },
    )
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    check_every_image_once(hosts, images)
    assert "INSECURE" not in hosts.all_said()
    assert "of-one-test" not in hosts.all_said()
    hosts.until_nothing_is_left()


def test_beyond_loopback_nothing_starts_without_a_guard(hosts, switch):
    hosts.start("true", options=LOCAL)
    assert set(hosts.codes().values()) == {EXIT_WRONG_SETTINGS}
    assert f"a certificate for {LEADER}" in hosts.reason(LEADER)
    assert "a token (SUPER_TOKEN or SUPER_TOKEN_FILE" in hosts.reason(TRAINER_0)


@pytest.mark.parametrize("cut", [LEADER, TRAINER_1])
def test_a_host_whose_cable_is_pulled_is_lost(hosts, switch, cut):
    bare = ("--insecure", "--no-torchrun", "--coordinator=127.0.0.1:1", "--silence-s=3")
    hosts.start("sh", "-c", "echo begun; sleep 1000", options=bare)
    for host in hosts.training_hosts:
        hosts.until_said(host, "(?m)^begun$")
    switch.pull(cut)
    codes = hosts.codes()
    if cut == LEADER:
        assert codes == {LEADER: EXIT_HOST_LOST, TRAINER_0: EXIT_LEADER_LOST, TRAINER_1: EXIT_LEADER_LOST}
    else:
        assert codes == {LEADER: EXIT_HOST_LOST, TRAINER_0: EXIT_HOST_LOST, TRAINER_1: EXIT_LEADER_LOST}
    assert "has said nothing for 3 s" in hosts.reason(LEADER)
    hosts.until_nothing_is_left()
