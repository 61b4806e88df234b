"""Two ranks that torchrun started share each epoch, by the loader that finds its rank in the environment.

`test_all_loaders` has two ranks of the loaders that are told theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.loaders.opening import COUNT, counted, expected_keys, need, write_dirty_images

RANK = Path(__file__).with_name("loader_rank.py")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [need["torch"], need["mds"]])
def test_ranks_of_torchrun_share_an_epoch(kind, tmp_path):
    directory = write_dirty_images(tmp_path / "train")
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"),
            *("--local-addr", "127.0.0.1", "--nproc-per-node", "2", "--max-restarts", "0"),
            *(str(RANK), kind, str(directory), str(out)),
        ],
        env={**os.environ, "PYTHONPATH": str(RANK.parents[3]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
    keys = set(expected_keys(directory).values())
    more, more_in_validation = (settings["repeated_samples"] for settings in ranks[0]["settings"])
    for shares in zip(*(rank["epochs"] for rank in ranks), strict=True):
        assert [len(batch) for batch in shares[0]] == [len(batch) for batch in shares[1]]
        seen = counted([*shares[0], *shares[1]])
        assert seen.keys() == keys
        assert sum(seen.values()) == COUNT + more
    assert ranks[0]["epochs"][0] != ranks[0]["epochs"][1]
    validated = [[key for batch in rank["validation"] for key in batch] for rank in ranks]
    ordered = sorted(keys, key=str.encode)
    assert (validated[0], validated[1][:-1], more_in_validation) == (ordered[::2], ordered[1::2], 1)
    assert [rank["padding"] for rank in ranks] == [[], validated[1][-1:]]
