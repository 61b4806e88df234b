"""The pure core: plans, residency, prefetch decisions. Events in, actions out; no I/O, no clock.

The stories read from top to bottom: of a rank in ``ranks`` and ``lookahead``; of a
request in ``dispatching``, ``requests`` and ``retrying``; of a sample in
``samples`` and ``cache``.
"""

from __future__ import annotations

from superdl.coordinator.core.core import Core as Core
from superdl.coordinator.core.events import *  # noqa: F403  # all that goes in and out
from superdl.coordinator.core.fleet import ExecutorState as ExecutorState
from superdl.coordinator.core.jobs import ClosedJobs as ClosedJobs
from superdl.coordinator.core.jobs import Job as Job
from superdl.coordinator.core.ledger import Ledger as Ledger
from superdl.coordinator.core.ledger import Spending as Spending
from superdl.coordinator.core.lookahead import exceeding_text as exceeding_text
from superdl.coordinator.core.lookahead import headroom_bytes as headroom_bytes
from superdl.coordinator.core.lookahead import maxmemory_for as maxmemory_for
from superdl.coordinator.core.lookahead import runs_of as runs_of
from superdl.coordinator.core.plan import Plan as Plan
from superdl.coordinator.core.samples import EVERY_EPOCH as EVERY_EPOCH
from superdl.coordinator.core.samples import SampleSet as SampleSet
from superdl.coordinator.core.samples import SampleState as SampleState
from superdl.coordinator.core.samples import SetKey as SetKey
from superdl.coordinator.core.samples import footprint as footprint
from superdl.coordinator.core.settings import CoreSettings as CoreSettings
from superdl.coordinator.core.settings import DatasetFacts as DatasetFacts
from superdl.coordinator.core.settings import ExecutorFacts as ExecutorFacts
from superdl.coordinator.core.settings import Prices as Prices
from superdl.coordinator.core.teams import NO_TEAM as NO_TEAM
from superdl.coordinator.core.teams import Team as Team
