"""Small runs on plain colours, in this process or on several ranks, and their files."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from PIL import Image
from rich.console import Console

from superdl.experiments.records import StepRecord
from superdl.experiments.run import run
from superdl.experiments.run.state import RunState
from superdl.experiments.spec import load_spec
from superdl.experiments.training.checkpoints import Checkpoints

ROOT = Path(__file__).resolve().parents[2]
LAUNCH_TIMEOUT_S = 150.0
END_TIMEOUT_S = 30.0
EVERY = ("training.checkpoint_every=1",)
PIXELS = ("recipe.resize=16", "recipe.crop=16")
CHANNELS = {"red": 0, "green": 1, "blue": 2}


def write_colours(directory, *, train, val, classes=("red", "blue")):
    """Write class folders of plain images of 16 pixels, each with its own shade."""
    for split, count in (("train", train), ("val", val)):
        for name in classes:
            (directory / split / name).mkdir(parents=True)
            for index in range(count):
                colour = [20, 20, 20]
                colour[CHANNELS[name]] = 150 + 3 * index
                Image.new("RGB", (16, 16), tuple(colour)).save(directory / split / name / f"{index}.png")
    return directory


def quiet():
    return Console(file=io.StringIO(), width=100)


def spec_of(images, output, *overrides):
    """By default, three epochs of the torch loader in this process."""
    own = ("epochs=3", "loader.kind=torch", "loader.num_workers=0", "training.threads=1")
    data = (f"data.train={images / 'train'}", f"data.val={images / 'val'}", f"output={output}")
    return load_spec("digits", [*own, "loader.batch_size=8", *data, *overrides])


def done(spec):
    return run(spec, console=quiet(), page=False)


def steps_of(directory):
    lines = (directory / "steps.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    return [(step["epoch"], step["split"], step["step"], step["batch_id"], step["loss"]) for step in steps]


def the_run(output):
    (directory,) = output.iterdir()
    return directory


def state_in(directory, name="last.pt"):
    return torch.load(directory / "checkpoints" / name, weights_only=True)


def same(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def interrupted_after(count, monkeypatch):
    """Send SIGTERM to this process while step ``count`` is written."""
    write, seen = RunState.on_steps, []

    def write_and_signal(self, steps):
        write(self, steps)
        seen.extend(steps)
        if len(seen) >= count and len(seen) - len(steps) < count:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(RunState, "on_steps", write_and_signal)


def every_checkpoint(folder, monkeypatch):
    """Copy each checkpoint that is written into ``folder``, and return their paths in order."""
    copies, write = [], Checkpoints.write

    def write_and_copy(self, file_name, checkpoint):
        write(self, file_name, checkpoint)
        copies.append(folder / f"{len(copies)}.pt")
        copies[-1].write_bytes((self.directory / file_name).read_bytes())

    monkeypatch.setattr(Checkpoints, "write", write_and_copy)
    return copies


# --------------------------------------------------------------------------------------- several ranks


@dataclass(frozen=True)
class Ended:
    """The outcome of a run of several ranks."""

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
    """Start a subcommand, or another program, under torchrun on this host."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    environment |= {"SUPER_STORE": "none", "SUPER_STATE": "none"}
    torchrun = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--max-restarts", "0"]
    command = [sys.executable, "-m", *torchrun, "--nproc-per-node", str(ranks), *program, *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def launch(ranks, output, *overrides, stop_after=None):
    """Run the digits with ``overrides`` on several ranks of this host, and kill ranks that hang.

    After ``stop_after`` bytes of rank 1's steps, send SIGTERM to torchrun, which forwards it.
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


_VALUES = {
    "epoch": 0,
    "split": "train",
    "step": 0,
    "batch_id": "00" * 16,
    "samples": 4,
    "wait_s": 0.5,
    "read_s": 0.25,
    "fetch_s": 1.0,
    "decode_s": 2.0,
    "compute_s": 0.125,
    "total_s": 0.75,
    "hits": 3,
    "misses": 1,
    "size_bytes": 100,
    "loss": 1.0,
    "accuracy": 0.5,
    "finished_at_s": 0.0,
}


def step_record(**changes):
    """Return a record with some values changed."""
    return StepRecord(**{**_VALUES, **changes})
