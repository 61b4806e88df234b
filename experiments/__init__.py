"""Experiments: one YAML spec, one command, one report.

This package trains models through SUPER's public API, as a user would, and reports where time is spent.
`experiments.spec` defines a run, `experiments.run.run` executes it. Importing the package is cheap: only the
modules that train load torch.
"""

from __future__ import annotations

from superdl.experiments.places import CHECKPOINT_DIR, MODEL_DIR, OUTPUT_DIR
from superdl.experiments.spec import Spec, load_spec

__all__ = ["CHECKPOINT_DIR", "MODEL_DIR", "OUTPUT_DIR", "Spec", "load_spec"]
