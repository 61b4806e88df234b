"""Run a spec, write its report, and evaluate its checkpoints."""

from __future__ import annotations

from superdl.experiments.run.training_run import run

__all__ = ["run"]
