"""One rank that torchrun starts: reads two epochs and a validation by the loader that its arguments name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed

from tests.experiments.loaders.opening import expected_keys, keys_of, opened, padded_keys


def main(kind: str, directory: str, out: str) -> None:
    torch.distributed.init_process_group("gloo")
    rank, replicas = torch.distributed.get_rank(), torch.distributed.get_world_size()
    known = expected_keys(Path(directory))
    share = {"rank": rank, "replicas": replicas, "workers": 2}
    train = opened(kind, Path(directory), Path(out), **share)
    epochs = [keys_of(train, known) for _ in range(2)]
    train.close()
    val = opened(kind, Path(directory), Path(out), training=False, **share)
    told = {
        "epochs": epochs,
        "length": len(epochs[0]),
        "validation": keys_of(val, known),
        "padding": padded_keys(val, known),
        "settings": [dict(train.settings), dict(val.settings)],
    }
    val.close()
    (Path(out) / f"rank{rank}.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
