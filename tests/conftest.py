"""Fixtures that all tests may use, by file, and hypothesis profiles.

``light`` is the default: few, and the same each time. ``make test-full`` takes ``heavy``: many, and new.
"""

from __future__ import annotations

from hypothesis import settings

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
settings.register_profile("light", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("heavy", max_examples=500, deadline=None)
# The default; --hypothesis-profile on the command line is applied later and wins.
settings.load_profile("light")
