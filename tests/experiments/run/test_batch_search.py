"""The largest batch that fits: the search, and where it cannot be measured."""

import pytest
import torch

from superdl.experiments.run.batch_search import largest_that_fits
from superdl.main import main


@pytest.mark.parametrize("room", [0, 1, 2, 3, 31, 32, 33, 100, 777, 1000])
def test_the_search_comes_to_within_a_sixteenth(room):
    tried = []
    best = largest_that_fits(lambda size: tried.append(size) or size <= room, 10_000)
    assert room - max(room // 16, 1) < best <= room or best == room == 0
    assert len(tried) <= 15
    assert largest_that_fits(lambda size: size <= 1000, 24) == 24


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_it_is_refused(capsys):
    assert main(["run", "digits", "--find-batch-size"]) == 2
    assert "measures the memory of one GPU" in capsys.readouterr().err
