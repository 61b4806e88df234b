"""How a ``SuperLoader`` ends: closed, in a fork, by an error, with the script; nobody waits for ever."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch

from superdl.super_dataset import SuperLoader
from superdl.super_wire.errors import UsageError
from tests.super_dataset.stored_batches import bound_dataset, images, stored


@pytest.fixture
def refs(valkey):
    return [stored(valkey, images(16, seed=n), position=n) for n in range(8)]


def test_closing_ends_a_loop_that_has_asked_for_all(refs):
    loader = SuperLoader(bound_dataset(), refs[:3], None, 5)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(UsageError, match="closed"):
        next(batches)


class Stuck:
    """A dataset whose second batch waits until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __getitem__(self, number):
        if number == 1:
            self.begun.set()
            assert self.go_on.wait(60)
        return number


def test_closing_fails_what_no_thread_has_begun():
    dataset = Stuck()
    loader = SuperLoader(dataset, range(5), None, 5)
    batches = iter(loader)
    assert next(batches) == 0
    assert dataset.begun.wait(60)
    waiting = batches._ahead[1]  # behind the one that is being read
    loader.close()
    with pytest.raises(UsageError, match="closed"):
        waiting.result(timeout=60)
    dataset.go_on.set()


def test_a_fork_that_goes_on_with_a_pass_is_told(refs):
    batches = iter(SuperLoader(bound_dataset(), refs[:3], None, 5))
    next(batches)
    child = os.fork()
    if not child:
        status = 1
        try:
            next(batches)
        except UsageError as error:
            status = 0 if "fork" in str(error) else 2
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert next(batches)[0].shape == (16, 3, 8, 8)


def test_a_thread_that_cannot_be_had_at_first_is_started_later(refs, monkeypatch):
    loader = SuperLoader(bound_dataset(), refs, threads=2)

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start"):
            next(iter(loader))
    assert len(list(loader)) == len(refs)


def test_an_error_keeps_nothing_alive(refs):
    gone = []

    class Failing:
        def __getitem__(self, number):
            held = torch.zeros(10)
            weakref.finalize(held, gone.append, number)
            raise ValueError(held)

    batches = iter(SuperLoader(Failing(), range(3)))
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(ValueError, match="tensor"):
                next(batches)
        assert list(batches) == []
        assert set(gone) >= {0, 1}  # without the help of a garbage collection
    finally:
        gc.enable()


LEFT_IN_MID_EPOCH = """
import torch
from superdl.super_dataset import SuperLoader

class Busy:
    def __getitem__(self, number):
        made = torch.rand(16, 3, 64, 64)
        for _ in range(50):
            made = made * 1.01 + made.mean()
        return made

batches = iter(SuperLoader(Busy(), range(10_000), None, 8, threads=3))
for _ in range({count}):
    next(batches)
"""


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_script_may_end_in_mid_epoch(count):
    script = [sys.executable, "-c", LEFT_IN_MID_EPOCH.format(count=count)]
    done = subprocess.run(script, capture_output=True, timeout=100, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
