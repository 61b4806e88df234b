"""A single thread for torch, because several spin while they wait, and a few digits."""

import pytest
import torch

from superdl.experiments.data import make_digits


@pytest.fixture(autouse=True)
def one_thread():
    """Limit torch to one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Five images of each digit for training, two for validation."""
    whole = make_digits(tmp_path_factory.mktemp("whole") / "digits")
    few = tmp_path_factory.mktemp("few")
    for split, count in (("train", 5), ("val", 2)):
        for folder in sorted((whole / split).iterdir()):
            (few / split / folder.name).mkdir(parents=True)
            for path in sorted(folder.iterdir())[:count]:
                (few / split / folder.name / path.name).write_bytes(path.read_bytes())
    return few
