"""The worker: a process that calls in at a coordinator and runs functions in slots, its child processes.

``superdl worker`` starts one. This package alone speaks gRPC; the function in a slot does not.
"""

from __future__ import annotations

__all__: list[str] = []
