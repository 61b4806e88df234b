"""The function of SUPER, which fetches, decodes and pushes the samples in a prefetch request.

Deploy or run it as ``superdl.lambda_prefetch.handler:handler``. It knows nothing of jobs, plans or trainers:
the coordinator decides which samples are needed, and when. Importing it loads neither torch nor grpc. Modules
of custom steps mark them with ``from superdl.lambda_prefetch import custom_step``.
"""

from __future__ import annotations

from superdl.lambda_prefetch.custom_steps import custom_step

__all__ = ["custom_step"]
