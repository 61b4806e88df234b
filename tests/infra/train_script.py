"""What the launcher's tests train with: a rank that reads every batch through SUPER, steps a model by DDP,
and writes what it has seen.

It is run by torchrun on each training host; ``--source`` and ``--output`` are directories.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--fail-on-rank", type=int, default=-1)
    parser.add_argument("--forever", action="store_true", help="train until it is ended")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def save(*_):
        (given.output / f"saved-{rank}").touch()
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, save)
    dataset = SuperDataset(given.source, recipe=Recipe.image(resize=32, crop=24), return_info=True)
    sampler = SuperSampler(dataset, batch_size=given.batch_size, shuffle=True, seed=5)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=1)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3 * 24 * 24, len(dataset.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    epochs = []
    while len(epochs) < given.epochs or given.forever:
        seen = []
        for number, (images, labels, info) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(images.flatten(1).float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for place in range(len(labels)):
                if info.padding is None or not info.padding[place]:
                    digest = hashlib.sha256(images[place].permute(1, 2, 0).contiguous().numpy().tobytes())
                    seen.append((digest.hexdigest(), int(labels[place])))
            if number == 0 and not epochs:
                (given.output / f"begun-{rank}").touch()
                if given.fail_on_rank == rank:
                    raise SystemExit(7)
        epochs.append(seen)
    weight = hashlib.sha256(model.module.weight.detach().numpy().tobytes()).hexdigest()
    told = {
        name: os.environ[name]
        for name in ("RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID", "SUPER_COORDINATOR")
    }
    (given.output / f"rank-{rank}.json").write_text(
        json.dumps({"epochs": epochs, "weight": weight, "env": told})
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
