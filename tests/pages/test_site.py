"""The documentation site builds without warnings, and loads nothing from other hosts."""

import functools
import http.server
import os
import re
import subprocess
import threading

import pytest

import superdl
from tests.integration.test_top_in_a_browser import BROWSER, Tab
from tests.pages.markdown import ROOT

MKDOCS = ROOT / ".venv-docs/bin/mkdocs"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MKDOCS.exists(), reason="make docs installs mkdocs"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as ``make docs`` builds it."""
    directory = tmp_path_factory.mktemp("site")
    command = [MKDOCS, "build", "--strict", "--quiet", "--site-dir", directory]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return directory


def test_it_has_every_page_and_every_public_name(site):
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    assert all((site / page.replace("README.md", "index.md")).with_suffix(".html").exists() for page in pages)
    api = (site / "api.html").read_text(encoding="utf-8")
    assert [name for name in superdl.__all__ if f'id="superdl.{name}"' not in api] == []


def test_no_page_names_a_file_of_another_host(site):
    loaded = re.compile(
        r"<(?:link|script|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\"'>\s]+)"
    )
    pages = {page.name: loaded.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert pages
    assert {name: hosts for name, hosts in pages.items() if hosts} == {}


@pytest.fixture
def address(site):
    """Where the site is served."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.skipif(BROWSER is None, reason="no browser here: install chromium")
def test_a_browser_finds_by_search_and_asks_no_other_host(site, address, tmp_path):
    with Tab(tmp_path) as tab:
        for page in ("index.html", "api.html", "deploy/aws.html"):
            tab.ask("Page.navigate", url=f"{address}/{page}")
            tab.until("SUPER")
            hosts = "performance.getEntriesByType('resource').map(entry => new URL(entry.name).origin)"
            assert set(tab.value(hosts)) == {address}
        tab.ask("Page.navigate", url=f"{address}/index.html?q=FLUSHALL")
        tab.until("Faults", "matching document")
        assert tab.errors == []
