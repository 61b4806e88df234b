"""Two ranks that torchrun started share each epoch, whichever loader they use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.loaders.opening import BATCH, COUNT, counted, expected_keys, need, write_dirty_images

RANK = Path(__file__).with_name("loader_rank.py")
ROOT = RANK.parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [need["torch"], need["webdataset"], need["mds"], need["litdata"]])
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
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
    keys = set(expected_keys(directory).values())
    for epoch in range(2):
        shares = [rank["epochs"][epoch] for rank in ranks]
        assert [len(batch) for batch in shares[0]] == [len(batch) for batch in shares[1]]
        settings = ranks[0]["settings"][0]
        more, fewer = settings["repeated_samples"], settings.get("dropped_samples", 0)
        seen = counted([*shares[0], *shares[1]])
        assert sum(seen.values()) == COUNT + more - fewer
        assert seen.keys() <= keys
        assert len(seen) == COUNT - fewer
        assert more + fewer < 2 * BATCH
    assert ranks[0]["epochs"][0] != ranks[0]["epochs"][1]
    validated = counted([*ranks[0]["validation"], *ranks[1]["validation"]])
    assert validated.keys() == keys
    assert sum(validated.values()) == COUNT + 1 == COUNT + ranks[0]["settings"][1]["repeated_samples"]
    ordered = sorted(keys, key=str.encode)
    assert [key for batch in ranks[0]["validation"] for key in batch] == ordered[::2]
    second = [key for batch in ranks[1]["validation"] for key in batch]
    assert second[:-1] == ordered[1::2]
    assert [rank["padding"] for rank in ranks] == [[], second[-1:]]
