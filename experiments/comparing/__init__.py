"""`superdl compare`: run the arms of a spec interleaved, and compare their figures.

``arms`` defines the runs and their order, ``running`` executes them round by round; ``measured`` reads the
runs' reports, ``figures`` holds the arithmetic and its wording, ``comparison`` and ``show`` the output. The
process of each run imports this package, so nothing is imported here.
"""

from __future__ import annotations

__all__: list[str] = []
