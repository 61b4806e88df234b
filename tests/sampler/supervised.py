"""A run of the embedded default for tests: short temporary directory, settings, a look at its processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import psutil

from superdl.sampler.embedded.embedded import Embedded
from superdl.sampler.embedded.run_directory import RunDirectory
from superdl.sampler.embedded.supervisor_settings import SupervisorSettings

PROGRAMS = Path(__file__).with_name("programs")
ROOT = PROGRAMS.parents[2]
END_TIMEOUT_S = 30.0
GRACE_S = 0.1
CACHE_BYTES = 32 * 2**20


class Supervised:
    """One run below a temporary directory of its own; ends all that it started."""

    def __init__(self, monkeypatch) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="super-s-"))  # short: socket paths have 107 bytes
        monkeypatch.setattr(tempfile, "tempdir", str(self.base))
        monkeypatch.setenv("TMPDIR", str(self.base))
        self.run = f"test:{uuid.uuid4().hex}"
        self.directory = RunDirectory.of_run(self.run)
        self._held: list[Embedded] = []
        self._ranks: list[subprocess.Popen] = []
        self._seen: set[psutil.Process] = set()

    def settings(self, good_starts: int = 10**6) -> SupervisorSettings:
        stand_in = str(PROGRAMS / "stand_in_coordinator.py")
        command = (sys.executable, stand_in, str(good_starts), str(self.base / "starts"))
        return SupervisorSettings(cache_bytes=CACHE_BYTES, slots=1, coordinator=command, grace_s=GRACE_S)

    def hold(self, settings: SupervisorSettings | None = None) -> Embedded:
        """Hold it in this process."""
        self._held.append(Embedded(self.run, settings or self.settings()))
        self.processes()
        return self._held[-1]

    def start_rank(self) -> subprocess.Popen:
        """Another process that will hold it; :meth:`await_rank` waits until it does."""
        rank = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "holds_embedded.py"), self.run, self.settings().to_json()],
            cwd=ROOT,
            env={
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(self.base),
                "SUPER_STORE": "none",
                "SUPER_STATE": "none",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ranks.append(rank)
        return rank

    def await_rank(self, rank: subprocess.Popen) -> str:
        address = rank.stdout.readline().strip()
        assert address
        self.processes()
        return address

    def processes(self) -> dict[str, psutil.Process]:
        """Supervisor, cache and coordinator of the run, those that live."""
        kinds = {
            "superdl.sampler.embedded.supervisor": "supervisor",
            "redis.sock": "cache",
            "coordinator.sock": "coordinator",
        }
        found = {}
        for process in psutil.process_iter():
            try:
                words = " ".join(process.cmdline())
                alive = process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
            if alive and str(self.directory.path) in words:
                # The coordinator's command names both sockets.
                kind = "coordinator" if "coordinator.sock" in words else ""
                kind = kind or next((kind for word, kind in kinds.items() if word in words), "")
                if kind:
                    found[kind] = process
        self._seen |= set(found.values())
        return found

    def assert_all_ended(self) -> None:
        _, alive = psutil.wait_procs(self._seen, timeout=END_TIMEOUT_S)
        assert not alive, [process.cmdline() for process in alive]

    def assert_all_gone(self) -> None:
        self.assert_all_ended()
        assert not self.directory.path.exists()

    def close(self) -> None:
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
