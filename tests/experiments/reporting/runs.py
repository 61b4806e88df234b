"""Runs in memory, for tests of what is said and shown of them."""

from __future__ import annotations

from pathlib import Path

from superdl.experiments.records import StepRecord
from superdl.experiments.reporting.run_files import Pass, RunFiles, StepColumns, UsageRow

FIGURES = {
    "samples": 1000,
    "batches": 10,
    "wall_s": 10.0,
    "first_batch_s": 0.5,
    "wait_s": 0.4,
    "read_s": 1.5,
    "compute_s": 9.0,
    "hits": 1000,
    "misses": 0,
    "loss": 0.5,
    "accuracy": 0.9,
    "top5_accuracy": None,
    "images_per_s": 100.0,
    "job": {},
}


def one_pass(epoch: int = 0, split: str = "train", **changes: object) -> Pass:
    return Pass(epoch, split, FIGURES | changes)


def a_run(*passes: Pass, steps=None, usage=(), others=(), **known: object) -> RunFiles:
    report = {"status": "finished", "wall_s": 12.0, "spec": {"epochs": len(passes)}, "bill": None} | known
    return RunFiles(Path("run"), report, steps or {}, {0: list(usage), **dict(others)}, passes, ())


def stalls(**waits: float) -> dict[str, object]:
    return {
        "steps": 10,
        "stalled": len(waits),
        "wait_s": sum(waits.values()),
        "causes": {name: {"steps": 1, "wait_s": wait_s} for name, wait_s in waits.items()},
    }


def bill(*lines: tuple[str, float | None], each: float | None = 2.5) -> dict[str, object]:
    return {
        "lines": [{"name": name, "usd": usd, "by_epoch": [], "how": ""} for name, usd in lines],
        "usd": sum(usd or 0.0 for _, usd in lines),
        "usd_per_million_images": each,
        "epochs": [],
    }


def columns(*steps: tuple[float, float, float]) -> StepColumns:
    found = StepColumns()
    for index, (wait_s, compute_s, total_s) in enumerate(steps):
        rest = dict.fromkeys(("read_s", "fetch_s", "decode_s"), 0.0)
        whole = dict.fromkeys(("hits", "misses", "size_bytes"), 0)
        learnt = {"loss": 1.0 - index / 4, "accuracy": index / 4, "finished_at_s": 100.0 + index}
        times = {"wait_s": wait_s, "compute_s": compute_s, "total_s": total_s}
        found.add(StepRecord(0, "train", index, "", 4, **times, **learnt, **rest, **whole))
    return found


def usage(at_s: float, subject: str, cores: float | None = None, **gpu: float) -> UsageRow:
    return UsageRow(at_s, subject, cores, gpu.get("percent"), gpu.get("used"), gpu.get("total"))
