"""A real run for tests of pages."""

from dataclasses import replace

import pytest

from superdl.experiments.run import run
from tests.experiments.small_runs import PIXELS, quiet, spec_of, write_colours

NAME = "<script>alert(1)<script>&co"


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The directory of a run of two epochs whose name must be escaped."""
    root = tmp_path_factory.mktemp("page")
    write_colours(root, train=12, val=4)
    run(replace(spec_of(root, root / "runs", "epochs=2", *PIXELS), name=NAME), console=quiet())
    (directory,) = (root / "runs").iterdir()
    return directory
