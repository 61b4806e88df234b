"""A run of a spec, from start to report, and the search for its largest batch.

`training_run` executes a spec, `listeners` and `state` write its results.
"""

from __future__ import annotations

from superdl.experiments.run.training_run import run

__all__ = ["run"]
