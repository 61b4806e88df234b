"""Training: a plain PyTorch loop, distributed, measured step by step, resumable.

`loop` holds the loop, `steps` a step and its record, `ranks` the joint start and end of several processes,
`device` the precision and the strategy, `checkpoints` the saved state.
"""

from __future__ import annotations

from superdl.experiments.training.loop import Trainer

__all__ = ["Trainer"]
