"""A plain PyTorch training loop that is distributed, measured step by step, and resumable."""

from __future__ import annotations

from superdl.experiments.training.loop import Trainer

__all__ = ["Trainer"]
