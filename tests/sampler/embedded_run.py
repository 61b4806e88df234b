"""A run of the embedded default: a short temporary directory, settings, and a view of its processes."""

import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import psutil

from superdl.sampler.embedded.embedded import Embedded
from superdl.sampler.embedded.settings import EmbeddedSettings
from superdl.super_wire.run_directory import RunDirectory

PROGRAMS = Path(__file__).with_name("programs")
ROOT = PROGRAMS.parents[2]
END_TIMEOUT_S = 30.0
CACHE_BYTES = 32 * 2**20


class EmbeddedRun:
    """A run in its own temporary directory, which ends all processes that it started."""

    def __init__(self, monkeypatch):
        self.base = Path(tempfile.mkdtemp(prefix="super-s-"))  # short: socket paths have 107 bytes
        monkeypatch.setattr(tempfile, "tempdir", str(self.base))
        monkeypatch.setenv("TMPDIR", str(self.base))
        monkeypatch.setenv("SUPER_STORE", "none")
        monkeypatch.setenv("SUPER_STATE", "none")
        self.run = f"test:{uuid.uuid4().hex}"
        self.directory = RunDirectory.of_run(self.run)
        self._held = []
        self._ranks = []
        self._seen = set()

    def settings(self):
        return EmbeddedSettings(cache_bytes=CACHE_BYTES, slots=1)

    def hold(self, settings=None):
        """Hold it in this process."""
        self._held.append(Embedded(self.run, settings or self.settings()))
        self.processes()
        return self._held[-1]

    def start_rank(self):
        """Start a process that holds it. :meth:`await_rank` waits until it does."""
        rank = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "holds_embedded.py"), self.run],
            cwd=ROOT,
            env={
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(self.base),
                "SUPER_STORE": "none",
                "SUPER_STATE": "none",
                "SUPER_SLOTS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ranks.append(rank)
        return rank

    def await_rank(self, rank):
        address = rank.stdout.readline().strip()
        assert address
        self.processes()
        return address

    def processes(self):
        """Return the run's live coordinator, cache and worker."""
        kinds = {"superdl-worker": "worker", "superdl-slot": "", "valkey-server": "cache"}
        found = {}
        for process in psutil.process_iter():
            try:
                name, words = process.name(), " ".join(process.cmdline())
                alive = process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
            # A forked worker has the coordinator's command.
            kind = kinds.get(name, "coordinator" if "superdl.coordinator.embedded" in words else "")
            if alive and kind and str(self.directory.path) in words:
                found[kind] = process
        self._seen |= set(found.values())
        return found

    def assert_all_ended(self):
        _, alive = psutil.wait_procs(self._seen, timeout=END_TIMEOUT_S)
        assert not alive, [process.cmdline() for process in alive]

    def assert_all_gone(self):
        self.assert_all_ended()
        assert not self.directory.path.exists()

    def close(self):
        for rank in self._ranks:
            rank.kill()
            rank.communicate(timeout=END_TIMEOUT_S)
        for embedded in self._held:
            embedded.release()
        self.processes()
        _, alive = psutil.wait_procs(self._seen, timeout=END_TIMEOUT_S)
        for process in alive:
            process.kill()
        shutil.rmtree(self.base, ignore_errors=True)
