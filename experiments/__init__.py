"""Experiments: one YAML spec, one command, one report.

This package trains models through SUPER's public API, exactly as a user would, and reports what the run cost
in waiting, reading, decoding and computing. `experiments.spec` says what a run is, `experiments.run.run`
carries it out. Importing the package is cheap: torch is loaded only by the modules that train.
"""

from __future__ import annotations

from superdl.experiments.places import CHECKPOINT_DIR, MODEL_DIR, OUTPUT_DIR
from superdl.experiments.spec import Spec, load_spec

__all__ = ["CHECKPOINT_DIR", "MODEL_DIR", "OUTPUT_DIR", "Spec", "load_spec"]
