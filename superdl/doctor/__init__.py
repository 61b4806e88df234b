"""What ``superdl doctor`` looks at: each check gives a finding with its reason and its remedy.

:mod:`superdl.doctor.checks` lists them in their order, :mod:`superdl.doctor.running` runs them;
:mod:`superdl.doctor.case` is what they are asked about and what they leave for one another;
:mod:`superdl.doctor.stack` reads from a deployed stack where things are. The others look.
"""

from __future__ import annotations

from superdl.doctor.finding import Finding, Verdict

__all__ = ["Finding", "Verdict"]
