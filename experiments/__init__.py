"""Train from a YAML spec through SUPER's public API, and report where the time goes."""

from __future__ import annotations

from superdl.experiments.spec import Spec, load_spec

# Importing this package is cheap, because it does not import torch.
__all__ = ["Spec", "load_spec"]
