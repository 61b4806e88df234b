"""A trainer to run as a program in tests: endless epochs through the embedded default, one line per batch.

Arguments: directory of images, number of workers.
"""

import signal
import sys

from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset


def main(directory, workers):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if started by a background shell
    dataset = SuperDataset(directory, Recipe.image(resize=32, crop=32))
    sampler = SuperSampler(dataset, batch_size=8, shuffle=True, seed=0)
    # A torch worker outlives a parent that is killed before the worker has looked up its pid, with or without
    # SUPER. Fork workers once, so that no test kills at such a moment.
    loader = DataLoader(
        dataset, sampler=sampler, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )
    for epoch in range(1_000_000):
        for number, (images, _) in enumerate(loader):
            sys.stdout.write(f"{epoch} {number} {len(images)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
