"""The embedded default as real processes: found, started, shared, restarted, and gone with the last rank."""

from __future__ import annotations

import itertools
import os
import platform
import re
import select
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
import redis

from superdl.sampler.embedded.embedded import embedded_for, release_all
from superdl.sampler.embedded.run_directory import RunDirectory
from superdl.sampler.embedded.supervisor_settings import ExecutorChoice
from superdl.super_wire.errors import EmbeddedError
from tests.sampler.supervised import CACHE_BYTES, END_TIMEOUT_S


def cache_of(supervised, **credentials):
    retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 200)
    return redis.Redis(
        unix_socket_path=str(supervised.directory.cache_socket),
        retry=retry,
        retry_on_error=[redis.exceptions.ConnectionError],
        **credentials,
    )


def test_when_made_the_cache_answers_as_it_was_asked_to(supervised):
    embedded = supervised.hold()
    assert embedded.coordinator == f"unix:{supervised.directory.coordinator_socket}"
    with cache_of(supervised) as cache:
        assert cache.info("memory")["maxmemory"] == CACHE_BYTES
        settings = cache.config_get("*")
    assert settings["maxmemory-policy"] == "noeviction"
    assert (settings["save"], settings["appendonly"], settings["port"]) == ("", "no", "0")
    assert supervised.directory.path.stat().st_mode & 0o777 == 0o700
    assert supervised.directory.cache_socket.stat().st_mode & 0o077 == 0
    supervisor = supervised.processes()["supervisor"]
    assert os.getpgid(supervisor.pid) == supervisor.pid, "Ctrl-C in the trainer's terminal does not reach it"
    assert os.getsid(supervisor.pid) == os.getsid(0), (
        "priorities count within a session only, on some kernels"
    )
    assert not supervisor.net_connections("inet")


def test_release_ends_everything(supervised):
    supervised.hold().release()
    supervised.assert_all_gone()
    assert not list(supervised.directory.path.parent.iterdir()), "locks and logs go too"


@pytest.mark.parametrize("removed", ["base", "directory"])
def test_it_ends_also_where_somebody_has_cleaned_the_temporary_directory(supervised, removed):
    embedded = supervised.hold()
    shutil.rmtree(supervised.base if removed == "base" else supervised.directory.path)
    embedded.release()
    supervised.assert_all_gone()


def test_ranks_of_a_run_share_one_and_the_last_ends_it(supervised):
    ranks = [supervised.start_rank() for _ in range(3)]
    assert len({supervised.await_rank(rank) for rank in ranks}) == 1
    supervisors = [p for p in psutil.process_iter() if is_supervisor_of(p, supervised)]
    assert len(supervisors) == 1
    for rank in ranks[:2]:
        rank.communicate("", timeout=END_TIMEOUT_S)
        assert supervisors[0].is_running()
    ranks[2].kill()
    supervised.assert_all_gone()


def is_supervisor_of(process, supervised):
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "superdl.sampler.embedded.supervisor" in words and str(supervised.directory.path) in words


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_whatever_ends_the_trainer_ends_everything_although_a_worker_lives_on(supervised, number):
    rank = supervised.start_rank()
    supervised.await_rank(rank)
    rank.stdin.write("fork\n")
    rank.stdin.flush()
    worker = psutil.Process(int(rank.stdout.readline()))
    rank.send_signal(number)
    rank.wait(END_TIMEOUT_S)
    supervised.assert_all_gone()
    assert worker.is_running(), "or this test shows nothing"
    worker.kill()


def test_a_supervisor_that_is_killed_takes_its_children_along_and_is_replaced(supervised):
    embedded = supervised.hold()
    before = supervised.processes()
    before["supervisor"].kill()
    _, alive = psutil.wait_procs(before.values(), timeout=END_TIMEOUT_S)
    assert not alive
    with cache_of(supervised) as cache:
        assert cache.ping(), "at the same address"
    rank = supervised.start_rank()
    assert supervised.await_rank(rank) == embedded.coordinator
    assert set(supervised.processes()) == {"supervisor", "cache", "coordinator"}
    assert embedded.failure() is None


def test_one_that_is_found_dying_is_not_the_last_word(supervised):
    """Of a killed process the system may close the ranks' connections before the listening socket."""
    supervised.directory.path.parent.mkdir(mode=0o700)
    supervised.directory.path.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(supervised.directory.supervisor_socket))
        dying.listen()
        caller = threading.Thread(target=supervised.hold)
        caller.start()
        assert select.select([dying], [], [], END_TIMEOUT_S)[0]
    caller.join(END_TIMEOUT_S)
    assert set(supervised.processes()) == {"supervisor", "cache", "coordinator"}


def until(condition):
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def make_starts_fail(supervised):
    """A supervisor's output goes to the log: one that cannot be opened keeps it from being started."""
    supervised.directory.log.rename(supervised.base / "log")
    supervised.directory.log.mkdir()


def test_revivals_are_bounded_and_the_last_reason_is_told(supervised, caplog):
    embedded = supervised.hold()
    make_starts_fail(supervised)
    supervised.processes()["supervisor"].kill()
    until(lambda: embedded.failure() is not None)
    assert re.search("has died 4 times within 60 s.*could not be started.*log", str(embedded.failure()))
    assert caplog.text.count("another one is started") == 3


def test_a_start_that_fails_tells_the_last_lines_of_the_log(supervised):
    with pytest.raises(EmbeddedError, match=r"coordinator ended 2 times.*exit code 3") as caught:
        supervised.hold(supervised.settings(good_starts=0))
    assert "the stand-in has no more good starts" in str(caught.value)
    supervised.assert_all_gone()


def test_a_start_that_takes_too_long_is_given_up_and_ended(supervised, monkeypatch):
    monkeypatch.setenv("SUPER_START_TIMEOUT_S", "2")
    never = (sys.executable, "-c", "import signal; signal.pause()")
    with pytest.raises(EmbeddedError, match=r"not ready after 2 s \(SUPER_START_TIMEOUT_S\)"):
        supervised.hold(replace(supervised.settings(), coordinator=never))
    supervised.assert_all_gone()


def test_a_part_that_dies_again_and_again_is_given_up(supervised):
    embedded = supervised.hold(supervised.settings(good_starts=1))
    supervised.processes()["coordinator"].kill()
    supervised.assert_all_gone()
    until(lambda: embedded.failure() is not None)
    assert "coordinator ended 5 times" in str(embedded.failure())


def test_a_password_of_the_users_cache_is_wanted_by_this_one_too(supervised, monkeypatch):
    monkeypatch.setenv("SUPER_CACHE_USERNAME", "trainer")
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", "s3 cret")
    supervised.hold()
    with cache_of(supervised, username="trainer", password="s3 cret") as cache:
        assert cache.ping()
    words = [word for process in supervised.processes().values() for word in process.cmdline()]
    assert not [word for word in words if "s3 cret" in word]


def test_over_a_cache_that_is_there_no_other_is_started(supervised):
    choice = ExecutorChoice("lambda", "redis://127.0.0.1:6379", "another")
    supervised.directory = RunDirectory.of_run(supervised.run, choice.variant)
    supervised.hold(replace(supervised.settings(), choice=choice))
    processes = supervised.processes()
    assert processes.keys() == {"supervisor", "coordinator"}
    words = processes["coordinator"].cmdline()
    options = dict(itertools.pairwise(words))
    assert (options["--executor"], options["--cache"]) == ("lambda", choice.cache)
    assert options["--owner"].endswith(platform.node()), "hosts of a run do not take its lock from each other"


def test_wrong_settings_of_the_coordinator_are_told_at_once(supervised):
    command = (sys.executable, "-P", "-m", "superdl.coordinator")
    settings = replace(supervised.settings(), coordinator=command, choice=ExecutorChoice("lamda"))
    with pytest.raises(
        EmbeddedError, match=r"ended once before it was ready.* exit code 2: executor is one of .*'lamda'"
    ):
        supervised.hold(settings)
    supervised.assert_all_gone()


def test_samplers_that_choose_otherwise_have_holds_of_their_own(supervised, monkeypatch):
    settings = supervised.settings()
    other = replace(settings, choice=ExecutorChoice("lambda", "redis://127.0.0.1:6379", "another"))
    found = iter([settings, other, settings])
    monkeypatch.setattr(
        "superdl.sampler.embedded.embedded.SupervisorSettings.of_this_host", lambda: next(found)
    )
    try:
        holds = [embedded_for(supervised.run) for _ in range(3)]
        supervised.processes()
    finally:
        release_all()
    assert holds[0] is holds[2] is not holds[1]
    assert holds[0].coordinator != holds[1].coordinator
    supervised.assert_all_gone()


def test_what_guards_another_coordinator_is_kept_from_this_one(supervised, monkeypatch):
    """On its own socket it would refuse certificates, and turn its own trainer away for want of a token."""
    guards = ("SUPER_TLS_CERT", "SUPER_TLS_KEY", "SUPER_TOKEN", "SUPER_TOKEN_FILE", "SUPER_HEALTH_LISTEN")
    for name in (*guards, "SUPER_METRICS_LISTEN", "SUPER_FILE_ROOTS"):
        monkeypatch.setenv(name, "/somewhere")
    monkeypatch.setenv("SUPER_METRICS", "127.0.0.1:9400")
    supervised.hold()
    process = supervised.processes()["coordinator"]
    found = process.environ()
    assert not [name for name in (*guards, "SUPER_METRICS_LISTEN") if name in found]
    assert found["SUPER_FILE_ROOTS"] == "/somewhere"
    assert process.cmdline()[-3:-1] == ["--metrics-listen", "127.0.0.1:9400"]
