"""The view as a browser page on loopback: one HTML file, which fetches the latest view every second."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from superdl.super_wire.errors import ConfigError, SuperError, UnknownJobError
from superdl.super_wire.stall_causes import BUCKET, RESTARTING, SHARED, WAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HISTORY_S = 900
_JOBS_SHOWN = 50
_PORTS = 65_536
_OURS = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)  # tunnels change ports


class Page:
    """The page, which shows each new visitor the last fifteen minutes.

    ``port`` is on 127.0.0.1, and 0 picks a free one. Raises ``ConfigError`` if the port is taken.
    ``late_batches`` takes a job's name, and returns its recent batches that readers had to wait for.
    """

    def __init__(self, port: int, late_batches: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        if not 0 <= port < _PORTS:
            raise ConfigError(f"--web must be a port from 0 (any free port) to 65535, not {port}")
        self.late_batches = late_batches
        self._lock = threading.Lock()
        self._view: Mapping[str, Any] | None = None
        self._points: deque[dict[str, Any]] = deque(maxlen=HISTORY_S)
        self._count = 0  # of all points so far
        self._point_due_s = 0.0
        self.html = files("superdl.top").joinpath("page.html").read_bytes()
        self.policy = _policy(self.html.decode())
        try:
            self._server = _Server(("127.0.0.1", port), _Request)
        except OSError as error:
            raise ConfigError(
                f"cannot use port {port} for --web: {error.strerror}; 0 picks a free one"
            ) from error
        self._server.page = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="top-web", daemon=True)
        self._thread.start()

    def show(self, view: Mapping[str, Any]) -> None:
        """Show a view on all open pages from now on."""
        jobs = view["jobs"]
        message = {**view, "jobs": jobs[:_JOBS_SHOWN], "more_jobs": max(0, len(jobs) - _JOBS_SHOWN)}
        setup = _setup(view)
        message["helps"] = {name: wait.remedy(setup) for name, wait in WAITS.items()}
        with self._lock:
            self._view = message
            if time.monotonic() >= self._point_due_s:
                self._point_due_s = time.monotonic() + 0.9  # a second, allowing for jitter
                self._points.append(_point(view))
                self._count += 1

    def update(self, after: int) -> bytes:
        """Return the view and the timeline's points, except the first ``after`` points, as JSON."""
        with self._lock:
            # By number, since clocks step back. A page with a higher count belongs to an earlier server.
            new = self._count - after if 0 <= after <= self._count else self._count
            points = list(self._points)[max(0, len(self._points) - new) :]
            return json.dumps({"view": self._view, "points": points, "count": self._count}).encode()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _setup(view: Mapping[str, Any]) -> set[str]:
    """Return the setup that remedies must fit, in the form that :meth:`Wait.remedy` takes."""
    setup = {function["name"] for function in view["functions"]} | {RESTARTING}  # which is not known here
    if not view["coordinator"].startswith("unix:"):  # which embedded runs use
        setup.add(SHARED)
    if any(not job["source"].startswith("file:") for job in view["jobs"]):
        setup.add(BUCKET)
    return setup


def _point(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return a view's point on the timeline, or only its time if the coordinator did not respond."""
    if view["unreachable"]:
        return {"clock_s": view["clock_s"]}
    requests, cache = view["requests"], view["cache"]
    return {
        "clock_s": view["clock_s"],
        "images": {"images/s": view["images_per_s"]},
        "waits": view["waits"],
        "requests": {"in flight": requests["in_flight"], "slots": requests["slots"]},
        "cache": {"used": cache["resident_bytes"], "budget": cache["budget_bytes"]},
    }


def _policy(html: str) -> str:
    def digest(tag: str) -> str:
        content = html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {digest('script')}; style-src {digest('style')}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class _Server(ThreadingMixIn, TCPServer):
    """A server that, unlike ``HTTPServer``, does not resolve its own address in DNS."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    page: Page

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that hang up; print any other error, which is a bug."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    """A single request. The connection is closed after it, as in HTTP/1.0."""

    timeout = 30
    server: _Server

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host") or []
        path = self.path.partition("?")[0]
        # Otherwise a website could read the page under its own name (DNS rebinding).
        if len(hosts) != 1 or not _OURS.fullmatch(hosts[0].strip()):
            self.send_error(
                403, f"this page is only served under loopback names: open {self.server.page.url}"
            )
        elif path == "/":
            self._send(200, "text/html; charset=utf-8", self.server.page.html)
        elif path == "/view":
            try:
                after = int(self._query("after") or 0)
            except ValueError:
                after = 0
            self._send(200, "application/json", self.server.page.update(after))
        elif path == "/batches":
            self._late_batches()
        else:
            self.send_error(404, "Not found: use /, /view or /batches.")

    def _query(self, name: str) -> str:
        return parse_qs(urlsplit(self.path).query, errors="replace").get(name, [""])[0]

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Security-Policy": self.server.page.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _late_batches(self) -> None:
        try:
            batches = self.server.page.late_batches(self._query("job"))
        except UnknownJobError:
            self.send_error(404, "This job is not open.")
            return
        except SuperError:
            self.send_error(503, "The coordinator is not responding.")
            return
        self._send(200, "application/json", json.dumps(batches).encode())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Send an error as plain text that repeats nothing from the request."""
        text = message if code in {403, 404, 503} else "this server does not support such requests"
        self._send(code, "text/plain; charset=utf-8", f"{text}\n".encode())

    def version_string(self) -> str:
        return "superdl"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
        """Log nothing, because standard output shows the page's address."""
