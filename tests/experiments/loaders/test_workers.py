"""SIGTERM to all processes of a run lets its workers continue, and none is left afterwards."""

import os
import signal

import psutil
from torch.utils.data import DataLoader

from superdl.experiments.loaders.decoding import end_workers, starting_workers
from superdl.experiments.training.ranks import ProcessRank, Ranks, StopRequest

BATCHES = 40


def test_a_signal_to_the_whole_group_does_not_stop_the_workers():
    own = psutil.Process()
    batches = DataLoader(range(BATCHES), batch_size=None, num_workers=2, persistent_workers=True)
    before = set(own.children())
    with StopRequest(Ranks(ProcessRank())) as stop:
        stop.begin()
        with starting_workers():
            iterator = iter(batches)
            workers = set(own.children()) - before
            for process in workers:  # as they start
                process.send_signal(signal.SIGTERM)
        seen = [int(next(iterator)) for _ in range(4)]
        for process in workers:
            process.send_signal(signal.SIGTERM)
        os.kill(own.pid, signal.SIGTERM)
        assert stop.due()
        seen += [int(batch) for batch in iterator]
        stop.end()
    assert seen == list(range(BATCHES))
    end_workers(batches)
    assert not any(worker.is_running() for worker in workers)
