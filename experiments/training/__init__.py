"""A plain PyTorch training loop: distributed, measured step by step, and resumable."""

from __future__ import annotations

from superdl.experiments.training.loop import Trainer

__all__ = ["Trainer"]
