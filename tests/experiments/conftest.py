"""A small set of pictures in class folders, which runs of several tests train on."""

import pytest

from tests.experiments.small_runs import write_colours


@pytest.fixture
def colours(tmp_path):
    """Two classes of plain colours, 24 to train with, 8 to validate."""
    return write_colours(tmp_path / "colours", train=12, val=4)
