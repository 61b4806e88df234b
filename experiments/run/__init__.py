"""A run of a spec, from start to report, and the search for its largest batch.

`training_run` executes a spec, `listeners` and `state` write its results.
"""

from __future__ import annotations

from superdl.experiments.run.batch_search import largest_batch
from superdl.experiments.run.training_run import embedded_executor, run

__all__ = ["embedded_executor", "largest_batch", "run"]
