"""One rank of a training run, started by torchrun: trains a linear model and records the batches it received.

Argument: a JSON object, see :class:`Settings`. Writes ``rank<r>.json`` to ``out``: a list of batches per
pass, and ``agreed``, which should be equal on all ranks. Rank 0 writes ``state.json`` where a pass stops.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset

SIDE = 32
COLLECTIVE_S = 60


@dataclass
class Settings:
    """Settings of a run: ``passes`` holds sampler arguments, one entry per pass.

    A pass has ``epochs`` epochs (default 1) and leaves the last one after ``stop`` batches. The rank
    ``failing`` raises after its first batch.
    """

    source: str
    out: str
    batch_size: int
    passes: list[dict[str, Any]]
    seed: int = 1
    failing: int = -1


def main(settings):
    dist.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE_S))
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(3 * SIDE * SIDE, 4))
    found, agreed = zip(*(passed(settings, model, rank, **how) for how in settings.passes), strict=True)
    weights = [float(parameter.detach().double().sum()) for parameter in model.parameters()]
    out = Path(settings.out) / f"rank{rank}.json"
    out.write_text(json.dumps({"passes": found, "agreed": [*agreed, weights]}))
    dist.barrier()
    dist.destroy_process_group()


def passed(settings, model, rank, *, epochs=1, stop=None, **how):
    """Run one pass. Return its batches, and the values that all ranks should agree on."""
    dataset = SuperDataset(settings.source, Recipe.image(resize=SIDE, crop=SIDE), return_info=True)
    how = {"shuffle": True} | how
    sampler = SuperSampler(dataset, batch_size=settings.batch_size, seed=settings.seed, **how)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = []
    for epoch in range(epochs):
        for count, (images, labels, info) in enumerate(loader, 1):
            loss = torch.nn.functional.cross_entropy(model(images.flatten(1).float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()  # synchronizes all ranks
            optimizer.step()
            padding = [False] * len(labels) if info.padding is None else info.padding.tolist()
            place = {"epoch": info.epoch, "position": info.position, "rank": info.rank}
            batches.append(place | {"keys": list(info.keys), "padding": padding})
            if rank == settings.failing:
                raise RuntimeError("as scripted")
            if epoch == epochs - 1 and count == stop:
                break
    if stop is not None and rank == 0:
        state = sampler.state_dict(batches_consumed=stop)
        (Path(settings.out) / "state.json").write_text(json.dumps(state))
    agreed = [sampler.job, len(sampler), len(dataset), list(dataset.classes)]
    sampler.close()
    return batches, agreed


if __name__ == "__main__":
    main(Settings(**json.loads(sys.argv[1])))
