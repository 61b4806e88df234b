"""What ``superdl doctor`` looks at: each check gives a finding with its reason and its remedy.

:mod:`superdl.doctor.machine` looks at this machine, :mod:`superdl.doctor.services` at coordinator and cache,
:mod:`superdl.doctor.stack` reads from a deployed stack where they are.
"""

from __future__ import annotations

from superdl.doctor.finding import Finding, Verdict

__all__ = ["Finding", "Verdict"]
