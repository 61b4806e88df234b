"""Fixtures that all tests may use, by file, and hypothesis profiles.

``light`` is the default: few, and the same each time. ``make test-full`` takes ``heavy``: many, and new.
"""

import os
import signal
import threading

import pytest
from hypothesis import settings

# Processes of tests inherit it: none may write below the home directory. Tests of the store name their own.
os.environ["SUPER_STORE"] = os.environ["SUPER_STATE"] = "none"

# Tests run beside each other on all cores. Threads of torch's own on top make small models five times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell ignores SIGINT for what it starts in the background: processes that tests interrupt would not end.
_IN_MAIN_THREAD = threading.current_thread() is threading.main_thread()
if _IN_MAIN_THREAD and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.fixtures.images",
    "tests.fixtures.certificates",
    "tests.fixtures.valkey",
    "tests.fixtures.valkey_cluster",
    "tests.fixtures.object_store",
    "tests.fixtures.lambda_service",
    "tests.fixtures.ray_cluster",
    "tests.fixtures.stack",
    "tests.fixtures.containers",
]

# No deadlines: this machine's neighbours decide how long an example takes, not the code.
settings.register_profile("light", max_examples=30, deadline=None, derandomize=True)
settings.register_profile("heavy", max_examples=200, deadline=None)
# The default; --hypothesis-profile on the command line is applied later and wins.
settings.load_profile("light")

_SLOW_LIMIT_S = 300
"""What trains or fills caches for a minute takes some minutes on a machine that is busy with other things."""


def pytest_collection_modifyitems(items):
    """Give slow tests a longer limit than pyproject.toml's, unless they name their own."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_LIMIT_S))
