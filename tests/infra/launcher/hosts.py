"""A run on several "hosts": launchers as processes of this machine, each on a loopback address of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.fixtures.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[3]
END_WAIT_S = 120.0
_POLL_S = 0.02
_MARK = "SUPER_TEST_RUN"

LOCAL = "local"
LEADER, DATA, TRAINER_0, TRAINER_1 = "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"


class Hosts:
    """The hosts of one run.

    All that they start carries a mark in its environment, by which :meth:`left` finds what is still there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = uuid.uuid4().hex
        self.temporary = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))  # short: socket paths have 107 bytes
        self.ports = {name: free_port() for name in ("control", "coordinator", "cache", "ray", "master")}
        self.data_hosts: tuple[str, ...] = (LEADER,)
        self.training_hosts: tuple[str, ...] = (TRAINER_0, TRAINER_1)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        *command: str,
        options: tuple[str, ...] = (),
        only: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        flags: bool = True,
    ) -> None:
        """Start the launcher on every host, or on those of ``only``; without ``flags`` a file names them."""
        named = [f"--data-hosts={','.join(self.data_hosts)}", "--config-dir=/nonexistent"]
        named += [f"--training-hosts={','.join(self.training_hosts)}"]
        for host in only or self.data_hosts + self.training_hosts:
            own = [f"--failure-file={self.failure_file(host)}", *[*named, f"--host={host}"] * flags]
            self._start(host, "infra.launcher", *own, *options, "--", *command, environment=environment)

    def start_local(self, *command: str, options: tuple[str, ...] = ()) -> None:
        """Start all of them by the one launcher for this machine; it goes by the name of ``LOCAL``."""
        self._start(LOCAL, "infra.launcher.local", *options, "--", *command)

    def _start(
        self, host: str, module: str, *words: str, environment: Mapping[str, str] | None = None
    ) -> None:
        told = [f"--{name}-port={port}" for name, port in self.ports.items()]
        with self.log(host).open("wb") as log:
            self.processes[host] = subprocess.Popen(
                [sys.executable, "-m", module, *told, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self._environment(environment),
            )

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        own = {"PYTHONPATH": path, "TMPDIR": str(self.temporary), _MARK: self.mark}
        return {**os.environ, **own, **(more or {})}

    def log(self, host: str) -> Path:
        return self.directory / f"{host}.log"

    def said(self, host: str) -> str:
        """What a host's launcher and its children have printed."""
        return self.log(host).read_text(errors="replace")

    def failure_file(self, host: str) -> Path:
        return self.directory / f"{host}.failure"

    def reason(self, host: str) -> str:
        """Why a host's launcher says that the run failed."""
        return self.failure_file(host).read_text()

    def codes(self) -> dict[str, int]:
        """The exit code of each host's launcher, once all have ended."""
        deadline = time.monotonic() + END_WAIT_S
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"a launcher does not end:\n{self.all_said()}")
        return {host: process.returncode for host, process in self.processes.items()}

    def all_said(self) -> str:
        return "\n".join(f"--- {host}\n{self.said(host)}" for host in self.processes)

    def signal(self, host: str, number: signal.Signals) -> None:
        self.processes[host].send_signal(number)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait, bounded, for something that a launcher brings about."""
        deadline = time.monotonic() + END_WAIT_S
        while not condition():
            if time.monotonic() > deadline or all(p.poll() is not None for p in self.processes.values()):
                if condition():
                    return
                pytest.fail(f"not seen: {what}\n{self.all_said()}")
            time.sleep(_POLL_S)

    def until_said(self, host: str, pattern: str) -> None:
        self.until(lambda: re.search(pattern, self.said(host)), f"{pattern!r} by {host}")

    def left(self) -> list[psutil.Process]:
        """Processes of the run that are still there, with their names and command lines in ``info``."""
        looked_at = psutil.process_iter(["environ", "cmdline", "name"])
        return [process for process in looked_at if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        if process.info["environ"] and process.info["environ"].get(_MARK) == self.mark:
            return True
        # A cache server writes its title over its environment, and ends it so.
        return any(word.endswith(f":{self.ports['cache']}") for word in process.info["cmdline"] or ())

    def until_nothing_is_left(self) -> None:
        """Wait, bounded, until no process of the run is there."""
        deadline = time.monotonic() + END_WAIT_S
        while left := self.left():
            if time.monotonic() > deadline:
                pytest.fail(f"still there: {[process.cmdline() for process in left if process.is_running()]}")
            time.sleep(_POLL_S)

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        for process in self.left():
            process.kill()
        shutil.rmtree(self.temporary, ignore_errors=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """A leader and two training hosts, not started yet."""
    run = Hosts(tmp_path)
    yield run
    run.close()
