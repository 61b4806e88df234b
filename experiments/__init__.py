"""Train from a YAML spec through SUPER's public API, and report the time that each part takes."""

from __future__ import annotations

from superdl.experiments.spec import CHECKPOINT_DIR, MODEL_DIR, OUTPUT_DIR, Spec, load_spec

# Only the modules that train load torch, so importing this package is cheap.
__all__ = ["CHECKPOINT_DIR", "MODEL_DIR", "OUTPUT_DIR", "Spec", "load_spec"]
