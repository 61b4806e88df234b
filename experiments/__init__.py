"""Train from a YAML spec through SUPER's public API, and report where the time goes."""

from __future__ import annotations

from superdl.experiments.spec import CHECKPOINT_DIR, MODEL_DIR, OUTPUT_DIR, Spec, load_spec

# Importing this package is cheap, because it does not import torch.
__all__ = ["CHECKPOINT_DIR", "MODEL_DIR", "OUTPUT_DIR", "Spec", "load_spec"]
