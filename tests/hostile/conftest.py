"""What the trials of a process share."""

from __future__ import annotations

import os

import pytest

from tests.hostile.drawing import ground

SOAKED = int(os.environ.get("SUPER_TEST_TRIALS", "500"))


def pytest_generate_tests(metafunc):
    """Forty seeds of trials in the slow tests, as many more as wanted in the soak."""
    if "seed" in metafunc.fixturenames:
        slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(40)]
        soak = [pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 100 + SOAKED)]
        metafunc.parametrize("seed", slow + soak, ids="seed-{}".format)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """The cache, the store and the images."""
    with ground(tmp_path_factory.mktemp("hostile")) as made:
        yield made
