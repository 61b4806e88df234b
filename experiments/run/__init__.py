"""A run of a spec, from start to report, and the search for its largest batch."""

from __future__ import annotations

from superdl.experiments.run.training_run import run

__all__ = ["run"]
