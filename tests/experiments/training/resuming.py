"""Runs of a few digits that stop and go on, and what they leave."""

from __future__ import annotations

import io
import json
import os
import signal

import torch
from rich.console import Console

from superdl.experiments.run import run
from superdl.experiments.run.state import RunState
from superdl.experiments.spec import load_spec
from superdl.experiments.training.checkpoints import Checkpoints

EVERY = ("training.checkpoint_every=1",)


def spec_of(digits, output, *overrides):
    return load_spec(
        "digits",
        [
            "epochs=3",
            "loader.kind=torch",
            "loader.num_workers=0",
            "loader.batch_size=8",
            "training.threads=1",
            f"data.train={digits / 'train'}",
            f"data.val={digits / 'val'}",
            f"output={output}",
            *overrides,
        ],
    )


def done(spec):
    return run(spec, console=Console(file=io.StringIO(), width=100), page=False)


def steps_of(directory):
    lines = (directory / "steps.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    return [(step["epoch"], step["split"], step["step"], step["batch_id"], step["loss"]) for step in steps]


def the_run(output):
    (made,) = output.iterdir()
    return made


def state_in(directory, name="last.pt"):
    return torch.load(directory / "checkpoints" / name, weights_only=True)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def interrupted_after(count, monkeypatch):
    """Have a cluster ask for the end while step ``count`` is being written, which is when it is known."""
    write, seen = RunState.on_steps, []

    def asked(self, steps):
        write(self, steps)
        seen.extend(steps)
        if len(seen) >= count and len(seen) - len(steps) < count:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(RunState, "on_steps", asked)


def every_checkpoint(folder, monkeypatch):
    """Keep a copy in ``folder`` of each checkpoint that is written, in their order."""
    kept = []
    write = Checkpoints.write

    def keep(self, file_name, checkpoint):
        write(self, file_name, checkpoint)
        kept.append(folder / f"{len(kept)}.pt")
        kept[-1].write_bytes((self.directory / file_name).read_bytes())

    monkeypatch.setattr(Checkpoints, "write", keep)
    return kept
