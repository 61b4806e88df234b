"""Run a coordinator inside the test's own process."""

import asyncio
import inspect

import pytest

from tests.coordinator.running import running


@pytest.fixture(scope="session")
def serving_loop():
    """The one event loop that serves gRPC. With a second one in a process, grpc.aio loses events."""
    with asyncio.Runner() as runner:
        yield runner


def pytest_configure(config):
    config.addinivalue_line("markers", "coordinator(**options): options of the fixture coordinator")


def pytest_pyfunc_call(pyfuncitem):
    """Run a coroutine test on the loop that serves gRPC if it uses that fixture, else on its own loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    loop = pyfuncitem.funcargs.get("serving_loop")
    if "coordinator" in arguments:
        loop = arguments["coordinator"].loop
    (loop.run if loop else asyncio.run)(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def coordinator(serving_loop, valkey, request):
    """A running coordinator with the options of the test's ``coordinator`` mark."""
    marker = request.node.get_closest_marker("coordinator")
    context = running(valkey, serving_loop, **(marker.kwargs if marker else {}))
    yield serving_loop.run(context.__aenter__())
    serving_loop.run(context.__aexit__(None, None, None))


@pytest.fixture
def source(tmp_path):
    """Ten files in two classes. The scripted functions never read them."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(5):
            (tmp_path / name / f"{number}.jpg").write_bytes(b"x")
    return tmp_path
