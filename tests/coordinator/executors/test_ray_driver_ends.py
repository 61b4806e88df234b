"""The driver's process where there is no Ray to speak to: the reason reaches whoever starts the executor, and
it does not outlive what cannot go on. What takes Ray's place here does nothing, or fails.
"""

from __future__ import annotations

import asyncio
import os
import re

import pytest

from superdl.coordinator.executors import ExecutorError
from superdl.coordinator.executors.ray_child import RayChild
from superdl.coordinator.executors.ray_executor import RayExecutor
from superdl.super_wire.errors import ConfigError
from tests.coordinator.executors.asking import TIMEOUT_S, ask
from tests.coordinator.executors.in_rays_place import WORKING, in_rays_place
from tests.fixtures.valkey import free_port

__all__ = ["in_rays_place"]

MISSING = "raise ModuleNotFoundError('No module named ray')"
DYING = """
def init(**options):
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""
MISMATCHED = """
def init(**options):
    raise RuntimeError("Version mismatch: The cluster was started with: Ray: 1.0")
"""
TELLING = """
def init(**options):
    import os
    known = ("SUPER_", "AWS_", "RAY_AUTH_TOKEN_")
    raise OSError("it has " + ",".join(name for name in os.environ if name.startswith(known)) + ";")
"""
SILENT = """
def init(**options):
    import threading
    threading.Event().wait()
"""


async def refusal(address="auto"):
    executor = RayExecutor(cache="redis://127.0.0.1", address=address)
    with pytest.raises(ExecutorError) as caught:
        await executor.start()
    with pytest.raises(ExecutorError, match="no driver"):
        await executor.invoke(ask(), timeout_s=TIMEOUT_S)
    assert executor.driver_pid == 0
    assert executor.scaling.capacity == 0
    return caught.value


@pytest.mark.parametrize(
    ("code", "wrong_settings", "words"),
    [
        (MISSING, True, r"pip install 'superdl\[ray\]'"),
        (MISMATCHED, True, "Version mismatch"),
        (DYING, False, "ray_address=auto .*its driver ended: killed by SIGKILL.*ray start"),
    ],
)
def test_why_there_is_no_driver_is_told(in_rays_place, code, wrong_settings, words):
    in_rays_place(code)
    error = asyncio.run(refusal())
    assert error.wrong_settings is wrong_settings
    assert re.search(words, str(error)), error


def test_it_gets_rays_variables_and_no_credentials_of_ours(in_rays_place, monkeypatch):
    in_rays_place(TELLING)
    for name in ("SUPER_CACHE_PASSWORD", "SUPER_TOKEN", "AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "x")
    assert "it has RAY_AUTH_TOKEN_PATH;" in str(asyncio.run(refusal()))


def test_an_address_where_nobody_listens_is_told_at_once(in_rays_place):
    in_rays_place(SILENT)
    port = free_port()
    error = asyncio.run(refusal(f"127.0.0.1:{port}"))
    assert not error.wrong_settings
    assert f"ray_address=127.0.0.1:{port} (ConnectionRefusedError" in str(error)


def test_a_driver_that_does_not_answer_is_ended(in_rays_place):
    in_rays_place(SILENT)

    async def main():
        child = await RayChild.start(address="auto", function="f:f", cpus=1.0, on_nodes=list.clear)
        with pytest.raises(ExecutorError, match="no answer within 0 s"):
            await child.ready(0.1)
        await child.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(child.pid, 0)

    asyncio.run(main())


def test_it_ends_when_what_it_is_told_is_no_frame(in_rays_place):
    in_rays_place(WORKING)

    async def main():
        child = await RayChild.start(address="auto", function="f:f", cpus=1.0, on_nodes=lambda _: None)
        assert await child.ready(TIMEOUT_S) == "0"
        child._process.write(b"\xff" * 8)
        assert await child.ended() == "exit code 1"
        with pytest.raises(ExecutorError, match="Ray's driver"):
            await child.call("node", "{}", begin_s=TIMEOUT_S, timeout_s=TIMEOUT_S, on_begun=lambda: None)

    asyncio.run(main())


@pytest.mark.parametrize("address", ["ray://head:10001", "local", "", "http://head:8265"])
def test_an_address_that_no_driver_can_join_is_refused(address):
    with pytest.raises(ConfigError, match="ray start --address"):
        RayExecutor(cache="redis://127.0.0.1", address=address)
