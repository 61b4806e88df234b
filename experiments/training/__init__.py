"""Training: one plain PyTorch loop, spread over ranks by a strategy, measured step by step, resumable.

`loop` has the loop, `steps` a step and its record, `ranks` how several processes train one model and end,
`device` in what numbers and by which strategy, `checkpoints` what is kept.
"""

from __future__ import annotations

from superdl.experiments.training.loop import Trainer

__all__ = ["Trainer"]
