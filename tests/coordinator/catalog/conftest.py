"""Sources of a few files whose contents listings never read."""

import pytest

from tests.coordinator.catalog.key_lists import make


@pytest.fixture
def source(tmp_path):
    """A directory of two classes with three files each."""
    make(tmp_path / "source", *(f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(3)))
    return tmp_path / "source"
