"""The embedded default as users run it: no setup, and nothing left behind, however the trainer ends."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

TRAINER = Path(__file__).with_name("train_forever.py")
ROOT = TRAINER.parents[2]
END_TIMEOUT_S = 30.0


class Trainer:
    """A training program in its own session, and all its descendant processes."""

    def __init__(self, images, workers, temporary):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
        environment |= {
            "TMPDIR": str(temporary),
            "PYTHONPATH": str(ROOT),
            "SUPER_STORE": "none",
            "SUPER_STATE": "none",
        }
        self.temporary = temporary
        self.process = subprocess.Popen(  # our own script
            [sys.executable, str(TRAINER), str(images), str(workers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def wait_for_batches(self, count):
        """Wait for this many batches. Return their (epoch, position)."""
        assert self.process.stdout is not None
        found = []
        for _ in range(count):
            line = self.process.stdout.readline()
            assert line, self.process.communicate(timeout=END_TIMEOUT_S)[1]
            epoch, number, _ = map(int, line.split())
            found.append((epoch, number))
        return found

    def family(self):
        """The trainer and all its descendants, including those that left its session."""
        trainer = psutil.Process(self.process.pid)
        members = [trainer, *trainer.children(recursive=True)]
        return [member for member in members if member.status() != psutil.STATUS_ZOMBIE]

    def end(self):
        """Kill every process, whatever state the test left."""
        for member in self.family() if self.process.poll() is None else []:
            member.kill()
        with contextlib.suppress(ProcessLookupError):  # a worker may just have been forked
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=END_TIMEOUT_S)


@pytest.fixture
def trainer(images, temporary):
    running = Trainer(images, 2, temporary)
    running.wait_for_batches(3)
    yield running
    running.end()


def assert_all_gone(family, temporary):
    _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
    assert not alive, [member.cmdline() for member in alive]
    # torch's tensor server may leave its pymp-... socket when a worker ends at that moment.
    sockets = [path for path in temporary.rglob("*") if path.is_socket()]
    assert not [path for path in sockets if not path.parent.name.startswith("pymp-")]


def test_ctrl_c_ends_everything(trainer, temporary):
    family = trainer.family()
    assert len(family) >= 4, "trainer, coordinator, Valkey or worker is missing"
    os.killpg(trainer.process.pid, signal.SIGINT)  # as a terminal does: the whole foreground group
    _, errors = trainer.process.communicate(timeout=END_TIMEOUT_S)
    assert trainer.process.returncode in (1, 130, -signal.SIGINT), errors
    assert "KeyboardInterrupt" in errors
    assert "leaked" not in errors
    # Ctrl-C may hit Python inside popen_fork.py. This looks for grpc's fork warnings.
    assert not [line for line in errors.splitlines() if "fork" in line and "popen_fork" not in line]
    assert_all_gone(family, temporary)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_a_killed_trainer_takes_everything_along(trainer, temporary, number):
    family = trainer.family()
    trainer.process.send_signal(number)
    trainer.process.communicate(timeout=END_TIMEOUT_S)
    assert_all_gone(family, temporary)


PARTS = ["valkey-server", "superdl.coordinator.embedded", "superdl-slot", "superdl-worker"]


def label_of(process):
    """The name of a process that has its own, otherwise its command."""
    name = process.name()
    return name if name.startswith("superdl-") else " ".join(process.cmdline())


def test_what_dies_is_restarted(images, temporary):
    trainer = Trainer(images, 2, temporary)
    try:
        batches = trainer.wait_for_batches(25)
        for part in PARTS:
            while not (found := [one for one in trainer.family() if part in label_of(one)]):
                batches += trainer.wait_for_batches(1)  # its replacement is not up yet
            found[-1].kill()
            batches += trainer.wait_for_batches(120)
    finally:
        trainer.end()
    per_epoch = 19  # 150 samples in batches of 8
    assert [epoch * per_epoch + number for epoch, number in batches] == list(range(len(batches)))
