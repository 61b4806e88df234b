"""The server of ``superdl top --web``: allowed requests, headers, and updates for the page."""

import contextlib
import http.client
import json
import socket
import time
from urllib.parse import urlsplit

import pytest

from superdl.main import main
from superdl.super_wire.errors import CoordinatorError, UnknownJobError
from superdl.top.web import Page

VIEW = {
    "coordinator": "unix:/run/super.sock",
    "clock_s": 1.0,
    "unreachable": None,
    "jobs": [{"job": "<img src=x>\n\ndata: {}", "source": "file:///images"}] * 60,
    "functions": [{"name": "local"}],
    "images_per_s": 5.0,
    "waits": {"limits": 0.5},
    "requests": {"in_flight": 2, "slots": 3},
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


def get(url, path):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request("GET", path)
    return connection.getresponse()


def get_update(url, after=0):
    """What the page is told when it asks."""
    answer = get(url, f"/view?after={after}")
    assert answer.headers["Content-Type"] == "application/json"
    return json.loads(answer.read())


def test_a_page_is_served_under_a_strict_policy(page):
    answer = get(page.url, "/?x")
    assert answer.status == 200
    html = answer.read().decode()
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert (html.count("<script"), html.count("<style")) == (1, 1)
    assert "innerHTML" not in html
    assert "https:" not in html, "nothing from elsewhere"


OURS = ("127.0.0.1", "localhost:1234", "LOCALHOST", "[::1]:80")
OTHERS = ("evil.example", "127.0.0.1.evil.example", "localhost@evil", "", "a\tb")
METHODS = ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "<b>")


@pytest.mark.parametrize(
    ("method", "path", "hosts", "status"),
    [
        *(("GET", "/", [host], 200) for host in OURS),
        *(("GET", path, [host], 403) for host in OTHERS for path in ("/", "/view", "/batches?job=a")),
        *(("GET", "/", hosts, 403) for hosts in ([], ["localhost", "localhost"])),
        *((method, "/", ["localhost"], 501) for method in METHODS),
        ("GET", "/../etc/passwd", ["localhost"], 404),
        *(("GET", f"/batches{query}", ["localhost"], 404) for query in ("", "?job=b")),
        ("GET", "/batches?job=away", ["localhost"], 503),
    ],
)
def test_only_gets_of_known_paths_under_one_loopback_name_are_answered(page, method, path, hosts, status):
    head = "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.0", *(f"Host: {h}" for h in hosts)))
    with socket.create_connection(("127.0.0.1", urlsplit(page.url).port), 20) as client:
        client.sendall(f"{head}\r\n".encode())
        first = client.makefile("rb").readline()
    assert f" {status} ".encode() in first


def test_a_page_is_told_what_was_and_what_came_since_with_gaps_where_nobody_answered(page, monkeypatch):
    assert get_update(page.url) == {"view": None, "points": [], "count": 0}
    page.show(VIEW)
    first = get_update(page.url, "no-number")
    assert first["view"]["jobs"] == VIEW["jobs"][:50]
    assert first["view"]["more_jobs"] == 10
    assert first["points"][0]["requests"] == {"in flight": 2, "slots": 3}
    helps = first["view"]["helps"]
    assert (helps["limits"], helps["starting"]) == (
        "a higher spending cap",
        "persistent workers or a longer run",
    )
    later_s = time.monotonic() + 1
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    # Its clock was set back.
    page.show({**VIEW, "clock_s": 0.5, "unreachable": {"since_s": 1.0, "why": "gone"}})
    second = get_update(page.url, first["count"])
    assert second["points"] == [{"clock_s": 0.5}]
    assert second["view"]["unreachable"]["why"] == "gone"
    assert get_update(page.url, 2)["points"] == []
    for newcomer in (0, 99):  # a new page, and one that an earlier server filled
        assert len(get_update(page.url, newcomer)["points"]) == 2


def test_the_late_batches_of_a_job_are_answered(page):
    answer = get(page.url, "/batches?job=a%20%26%20b")
    assert answer.headers["Content-Type"] == "application/json"
    assert json.loads(answer.read()) == [LATE]


def test_a_port_that_cannot_be_had_is_named(page, stack, capsys):
    for port in (urlsplit(page.url).port, 70_000):
        assert main(["top", "--coordinator", stack.address, "--web", str(port)]) == 2
        assert f"{port}" in capsys.readouterr().err
    assert main(["top", "--coordinator", stack.address, "--web", "0", "--once"]) == 2
