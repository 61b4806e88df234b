"""A small set of pictures in class folders."""

import pytest

from tests.experiments.small_runs import write_colours


@pytest.fixture
def colours(tmp_path):
    """Two classes of plain colours: 24 training and 8 validation images."""
    return write_colours(tmp_path / "colours", train=12, val=4)
