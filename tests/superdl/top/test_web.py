"""``superdl top --web``: who is answered, by what headers, and what a page is told of a real coordinator."""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest

from superdl.main import main
from superdl.super_wire.errors import CoordinatorError, UnknownJobError
from superdl.top.web import Page
from tests.fixtures.workers import until

REQUESTS = {"in_flight": 2, "had": 3, "wanted": 4}
VIEW = {
    "clock_s": 1.0,
    "unreachable": None,
    "jobs": [{"job": "<img src=x>\n\ndata: {}"}] * 60,
    "images_per_s": 5.0,
    "waits": {"limits": 0.5},
    "requests": REQUESTS,
    "cache": {"resident_bytes": 1, "budget_bytes": 2},
}


LATE = {"rank": 0, "epoch": 20, "position": 22, "cause": "storage", "wait_s": 0.5}


def late_batches(job):
    if job == "away":
        raise CoordinatorError("no answer")
    if job != "a & b":
        raise UnknownJobError(f"no job {job}")
    return [LATE]


@pytest.fixture
def page():
    with contextlib.closing(Page(0, late_batches)) as page:
        yield page


def asked(url, path, method="GET", host=None):
    connection = http.client.HTTPConnection(str(urlsplit(url).netloc), timeout=20)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    return connection.getresponse()


def looked(url, after=0):
    """What the page is told when it asks."""
    answer = asked(url, f"/view?after={after}")
    assert answer.headers["Content-Type"] == "application/json"
    return json.loads(answer.read())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "LOCALHOST", "[::1]:80"])
def test_loopback_names_are_answered_under_a_strict_policy(page, host):
    answer = asked(page.url, "/?x", host=host)
    assert answer.status == 200
    html = answer.read().decode()
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert (html.count("<script"), html.count("<style")) == (1, 1)
    assert "innerHTML" not in html
    assert "https:" not in html, "nothing from elsewhere"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil", "", "a\tb"])
@pytest.mark.parametrize("path", ["/", "/view"])
def test_other_names_are_refused(page, path, host):
    answer = asked(page.url, path, host=host)
    assert answer.status == 403
    assert page.url in answer.read().decode()


def test_two_names_or_none_are_refused(page):
    for head in (b"", b"Host: localhost\r\nHost: localhost\r\n"):
        with socket.create_connection(("127.0.0.1", urlsplit(page.url).port or 0), 20) as client:
            client.sendall(b"GET / HTTP/1.0\r\n" + head + b"\r\n")
            assert b" 403 " in client.makefile("rb").readline()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "<b>"])
def test_nothing_but_get(page, method):
    assert asked(page.url, "/", method).status == 501
    assert asked(page.url, "/../etc/passwd").status == 404


def test_a_page_is_told_what_was_and_what_came_since_with_gaps_where_nobody_answered(page, monkeypatch):
    assert looked(page.url) == {"view": None, "points": [], "count": 0}
    page.show(VIEW)
    first = looked(page.url, "no-number")
    assert first["view"]["jobs"] == VIEW["jobs"][:50]
    assert first["view"]["more_jobs"] == 10
    assert first["points"][0]["requests"] == {"in flight": 2, "slots": 3}
    assert first["view"]["helps"]["limits"] == "a higher quota or a higher cap"
    later_s = time.monotonic() + 1
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    page.show(
        {**VIEW, "clock_s": 0.5, "unreachable": {"since_s": 1.0, "why": "gone"}}
    )  # its clock was set back
    second = looked(page.url, first["count"])
    assert second["points"] == [{"clock_s": 0.5}]
    assert second["view"]["unreachable"]["why"] == "gone"
    assert looked(page.url, 2)["points"] == []
    for newcomer in (0, 99):  # a new page, and one that an earlier server filled
        assert len(looked(page.url, newcomer)["points"]) == 2


def test_the_late_batches_of_a_job_are_answered_and_of_others_refused(page):
    answer = asked(page.url, "/batches?job=a%20%26%20b")
    assert answer.headers["Content-Type"] == "application/json"
    assert json.loads(answer.read()) == [LATE]
    assert asked(page.url, "/batches?job=b").status == 404
    assert asked(page.url, "/batches").status == 404
    assert asked(page.url, "/batches?job=away").status == 503
    assert asked(page.url, "/batches?job=a%20%26%20b", host="evil.example").status == 403


def test_a_port_that_cannot_be_had_is_named(page, stack, capsys):
    for port in (urlsplit(page.url).port, 70_000):
        assert main(["top", "--coordinator", stack.address, "--web", str(port)]) == 2
        assert f"{port}" in capsys.readouterr().err
    assert main(["top", "--coordinator", stack.address, "--web", "0", "--once"]) == 2


def test_the_page_of_a_real_coordinator_goes_on_through_its_restart(stack):
    command = [sys.executable, "-m", "superdl.main", "top", "--coordinator", stack.address, "--web", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        try:
            assert top.stdout is not None
            url = top.stdout.readline().split()[2]
            until(lambda: (looked(url)["view"] or {}).get("coordinator") == stack.address)
            stack.kill_coordinator()
            until(lambda: looked(url)["view"]["unreachable"])
            stack.start_coordinator()
            until(lambda: looked(url)["view"]["unreachable"] is None)
        finally:
            top.send_signal(signal.SIGINT)
        assert top.wait(20) == 0
