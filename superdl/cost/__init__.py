"""What an epoch and a month of training cost, by way of loading: pure functions over the price table.

``scenario`` has the inputs and where each is from, ``model`` SUPER's arithmetic, ``choices`` that of others,
and all side by side; ``tables`` shows them. What running jobs have cost is
:mod:`superdl.coordinator.core.ledger`'s.
"""

from __future__ import annotations

from superdl.cost.choices import bills
from superdl.cost.scenario import load_scenario

__all__ = ["bills", "load_scenario"]
