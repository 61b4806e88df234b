"""One run of a spec from its start to its report, and the search for its largest batch.

`training_run` carries a spec out, `opening` opens what it trains on, `listeners` and `state` write what comes
of it. Data, loaders, models and the training loop are in packages of their own.
"""

from __future__ import annotations

from superdl.experiments.run.batch_search import largest_batch
from superdl.experiments.run.opening import embedded_executor
from superdl.experiments.run.training_run import run

__all__ = ["embedded_executor", "largest_batch", "run"]
