"""The worker, which connects to a coordinator and runs functions in slots (child processes)."""

from __future__ import annotations

# Only this package speaks gRPC; the function in a slot does not.
__all__: list[str] = []
