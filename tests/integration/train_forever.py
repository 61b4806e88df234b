"""A trainer for tests, run as a program: endless epochs through the embedded default, a line per batch.

Arguments: directory of images, number of workers.
"""

import signal
import sys

from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset


def main(directory, workers):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    dataset = SuperDataset(directory, Recipe.image(resize=32, crop=32))
    sampler = SuperSampler(dataset, batch_size=8, shuffle=True, seed=0)
    # A worker of torch's whose parent is killed before it has looked who that is outlives it, with or without
    # us: so that no test kills at such a moment, workers are forked once.
    loader = DataLoader(
        dataset, sampler=sampler, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )
    for epoch in range(1_000_000):
        for number, (images, _) in enumerate(loader):
            sys.stdout.write(f"{epoch} {number} {len(images)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
