"""Fork repeatedly while two samplers iterate. Arguments: coordinator address, number of forks.

Prints a JSON line: the positions that each sampler gave in each epoch, and how many sockets, pollers and
event counters the children had.
"""

import json
import os
import random
import sys
import threading
from pathlib import Path

from superdl.sampler import SuperSampler
from tests.sampler.stand_ins import BoundDataset


def descriptors_to_the_outside():
    links = []
    for file in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(file.readlink()))
        except FileNotFoundError:  # the one that reads this directory
            continue
    return sum(link.startswith(("socket:", "anon_inode:")) for link in links)


def main():
    address, forks = sys.argv[1], int(sys.argv[2])
    samplers = [
        SuperSampler(BoundDataset(), batch_size=2, shuffle=True, seed=seed, coordinator=address)
        for seed in (0, 1)
    ]
    given = [[], []]
    done = threading.Event()

    def consume(number):
        while not done.is_set() or not given[number]:
            given[number].append([batch.position for batch in samplers[number]])

    consumers = [threading.Thread(target=consume, args=(number,)) for number in (0, 1)]
    for consumer in consumers:
        consumer.start()
    chance = random.Random(0)
    found = []
    for _ in range(forks):
        done.wait(chance.random() * 0.01)
        child = os.fork()
        if not child:
            os._exit(min(descriptors_to_the_outside(), 100))
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    done.set()
    for consumer in consumers:
        consumer.join()
    sys.stdout.write(json.dumps({"given": given, "found": found}))


if __name__ == "__main__":
    main()
