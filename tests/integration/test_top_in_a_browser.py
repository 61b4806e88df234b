"""The page of ``superdl top --web`` in a real browser, with a real coordinator and functions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE
from tests.fixtures.stack import Stack
from tests.integration.delivery import train

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
ENOUGH_S = 60.0
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
NARROW_PX = 400

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no browser here: install chromium"),
]


class Tab:
    """A tab of a headless browser, driven by the DevTools protocol over pipes. ``errors`` has its console
    messages and script exceptions.
    """

    def __init__(self, profile):
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        words = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        pipes = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        command = ["bash", "-c", pipes, str(BROWSER), *words, "--remote-debugging-pipe"]
        with (profile / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, pass_fds=(to_read, to_write), stdout=log, stderr=log, start_new_session=True
            )
        os.close(to_read)
        os.close(to_write)
        self._answers = os.fdopen(self._from, "rb", buffering=0)
        self._read, self._asked, self._session = b"", 0, ""
        self.errors = []

    def __enter__(self):
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)
        os.close(self._to)
        self._answers.close()

    def ask(self, method, **parameters):
        """Call a method of the protocol."""
        self._asked += 1
        message = {"id": self._asked, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            told = json.loads(self._next())
            if told.get("id") == self._asked:
                assert "error" not in told, told
                return dict(told["result"])
            if told.get("method") in (
                "Runtime.exceptionThrown",
                "Runtime.consoleAPICalled",
                "Log.entryAdded",
            ):
                self.errors.append(json.dumps(told["params"]))

    def _next(self):
        while b"\0" not in self._read:
            read = self._answers.read(65536)
            assert read, "the browser has ended"
            self._read += read
        message, _, self._read = self._read.partition(b"\0")
        return message

    def value(self, script):
        """The value of a JavaScript expression."""
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def until(self, *words):
        """The page's text, once it contains all these words."""
        deadline = time.monotonic() + ENOUGH_S
        while not all(word in (shown := str(self.value("document.body?.innerText"))) for word in words):
            assert time.monotonic() < deadline, f"{words} did not appear: {shown}; {self.errors}"
        return shown


@pytest.fixture
def tab(tmp_path):
    (tmp_path / "profile").mkdir()
    with Tab(tmp_path / "profile") as tab:
        yield tab


class Top:
    """``superdl top --web`` for a coordinator, shown in a tab."""

    def __init__(self, stack, tab):
        words = ["top", "--coordinator", stack.address, "--web", "0"]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "superdl.main", *words], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        tab.ask("Page.navigate", url=self._stdout.readline().split()[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGINT)
        self._process.wait(20)
        self._stdout.close()


def test_the_page_draws_what_happens_and_survives_names_restarts_and_narrow_screens(
    tab, valkey, images, tmp_path
):
    shutil.copytree(images, tmp_path / HOSTILE)
    next((tmp_path / HOSTILE).rglob("*.jpg")).with_name(f"{HOSTILE}.jpg").write_bytes(b"no JPEG")
    recipe = Recipe.image(resize=SIDE, crop=SIDE)
    dataset = SuperDataset(f"file://{tmp_path / HOSTILE}", recipe, on_bad_sample="skip")
    with Stack(cache=valkey.url) as stack, Top(stack, tab):
        tab.ask(
            "Emulation.setDeviceMetricsOverride",
            width=NARROW_PX,
            height=800,
            deviceScaleFactor=1,
            mobile=False,
        )
        with SuperSampler(dataset, batch_size=16, shuffle=True, coordinator=stack.address) as sampler:
            for ref in sampler:
                dataset[ref]
            shown = tab.until("onerror", "images/s", "answered", ".jpg can never be decoded", "epoch ")
            assert "No answer" not in shown
            bad = tab.value("document.querySelector('#jobs a[href=\"#warnings\"]').textContent")
            assert bad == "1 bad sample"
            tab.value("document.querySelector('#jobs a').click()")
            tab.until("Late batches of", "newest first")
            assert tab.value("document.querySelectorAll('#late script, #late img').length") == 0
        assert tab.value("document.querySelectorAll('body img, #jobs script, #warned script').length") == 0
        assert HOSTILE in tab.value("document.title")
        assert tab.value("document.querySelectorAll('#charts svg path').length") >= 3
        assert tab.value("document.documentElement.scrollWidth") <= NARROW_PX
        stack.kill_coordinator()
        tab.until("No answer since")
        stack.start_coordinator()
        tab.until("No open jobs. A job appears here when")
        assert tab.value("document.getElementById('lost').textContent") == ""
    assert tab.errors == []


def test_the_page_shows_that_functions_are_throttled(tab, lambda_service, photos, valkey, images):
    del photos
    lambda_service.concurrency = 2
    words = "--executor lambda --lambda-warm 2 --request-samples 4 --lookahead-batches 4"
    with Stack(arguments=tuple(words.split()), cache=valkey.url) as stack, Top(stack, tab):
        train(stack, images, "s3://photos/train", disturb={3: lambda: lambda_service.throttle_next(12)})
        tab.until("lambda", "throttled")
        assert tab.value("document.querySelectorAll('#charts path.area').length") >= 1
    assert tab.errors == []
