"""The worker: a process that connects to a coordinator and runs functions in slots, its child processes.

``superdl worker`` starts one. Only this package speaks gRPC; the function in a slot does not.
"""

from __future__ import annotations

__all__: list[str] = []
