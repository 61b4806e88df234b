"""Workers of loaders: SIGTERM to all of a run's processes lets them work on, and none is left afterwards."""

import os
import signal

import psutil
from torch.utils.data import DataLoader, Dataset

from superdl.experiments.loaders.decoding import end_workers, starting_workers
from superdl.experiments.training.ranks import StopRequest

BATCHES = 40


class _Numbers(Dataset[int]):
    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        return index


def opened():
    return DataLoader(_Numbers(), batch_size=None, num_workers=2, persistent_workers=True)


def workers_of(batches):
    return [psutil.Process(worker.pid) for worker in batches._iterator._workers]


def test_a_signal_to_the_whole_group_lets_the_workers_work_on():
    batches = opened()
    with StopRequest() as stop:
        stop.begin()
        with starting_workers():
            iterator = iter(batches)
            workers = workers_of(batches)
            for process in workers:  # as they start
                process.send_signal(signal.SIGTERM)
        seen = [int(next(iterator)) for _ in range(4)]
        for process in (*workers, psutil.Process(os.getpid())):
            process.send_signal(signal.SIGTERM)
        assert stop.due()
        seen += [int(batch) for batch in iterator]
        stop.end()
    assert seen == list(range(BATCHES))
    end_workers(batches)
    assert not any(worker.is_running() for worker in workers)
