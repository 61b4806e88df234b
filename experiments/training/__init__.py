"""Training: one plain PyTorch loop, spread over ranks by a strategy, measured step by step, resumable.

`loop` has the loop, `steps` a step and its record, `ranks`, `ending` and `strategies` how several processes
train one model, `device` in what it computes, `checkpoints` what is kept, `batch_size` the search for the
largest batch. A run around it is in `experiments.run`.
"""

from __future__ import annotations

from superdl.experiments.training.loop import Trainer
from superdl.experiments.training.steps import GpuGauge

__all__ = ["GpuGauge", "Trainer"]
