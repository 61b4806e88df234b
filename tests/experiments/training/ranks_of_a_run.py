"""Starts a run's ranks as users do, by torchrun and the command itself, and reads what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[3]
LAUNCH_TIMEOUT_S = 150.0
END_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Ended:
    """How the ranks ended, and the one directory that they left."""

    code: int
    errors: str
    directory: Path

    @property
    def report(self):
        return json.loads((self.directory / "report.json").read_text())

    def steps(self, rank=0, split="train"):
        name = "steps.jsonl" if rank == 0 else f"steps-rank{rank}.jsonl"
        steps = [json.loads(line) for line in (self.directory / name).read_text().splitlines()]
        return [step for step in steps if step["split"] == split]


def started(ranks, temporary, *words, program=("-m", "superdl.main")):
    """A subcommand, or another program, under torchrun, on so many ranks of this host."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    environment |= {"SUPER_STORE": "none", "SUPER_STATE": "none"}
    return subprocess.Popen(  # our own program
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
            *("--nproc-per-node", str(ranks), "--max-restarts", "0", *program, *words),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def launch(ranks, output, *overrides, stop_after=None):
    """Run the digits with ``overrides`` on so many ranks of this host; ranks that hang are killed.

    ``stop_after`` so many bytes of rank 1's steps, torchrun gets SIGTERM, which it passes on.
    """
    arguments = [f"--set={override}" for override in (f"output={output}", *overrides)]
    process = started(ranks, output.parent, "run", "digits", *arguments)
    try:
        if stop_after is not None:
            _wait_for_steps(output, stop_after, process)
            process.terminate()
        _, errors = process.communicate(timeout=LAUNCH_TIMEOUT_S)
    finally:
        if process.poll() is None:
            for member in [*psutil.Process(process.pid).children(recursive=True), process]:
                member.kill()
            process.communicate(timeout=END_TIMEOUT_S)
    (directory,) = output.iterdir()
    return Ended(process.returncode, errors, directory)


def _wait_for_steps(output, size_bytes, process):
    deadline_s = time.monotonic() + LAUNCH_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if any(path.stat().st_size >= size_bytes for path in output.glob("*/steps-rank1.jsonl")):
            return
        time.sleep(0.05)
    raise AssertionError("no step was written")
