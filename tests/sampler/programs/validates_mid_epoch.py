"""Trains with forked workers, and in the middle of an epoch validates with others, many times.

Arguments: coordinator address, validations. Prints a JSON line: (epoch, position) of all training batches,
    and the
positions of each validation.
"""

from __future__ import annotations

import json
import sys

from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from tests.sampler.stand_ins import BoundDataset


def loader(address: str, seed: int) -> DataLoader:
    dataset = BoundDataset()
    sampler = SuperSampler(dataset, batch_size=2, seed=seed, coordinator=address)
    return DataLoader(
        dataset, sampler=sampler, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )


def main() -> None:
    address, validations = sys.argv[1], int(sys.argv[2])
    training, validation = loader(address, 0), loader(address, 1)
    trained, validated = [], []
    for _ in range(2):
        for epoch, position, _ in training:
            trained.append((epoch, position))
            if len(validated) < validations and position % 3 == 0:
                validated.append([position for _, position, _ in validation])
    sys.stdout.write(json.dumps({"trained": trained, "validated": validated}))


if __name__ == "__main__":
    main()
