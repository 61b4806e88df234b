"""A step's record with figures that are easy to add up; tests change what they are about."""

from __future__ import annotations

from superdl.experiments.records import StepRecord

__all__ = ["step_record"]

_FIGURES = {
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
    """The record with some figures changed."""
    return StepRecord(**{**_FIGURES, **changes})
