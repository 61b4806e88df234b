"""The real function, writing to the cache through the trial's proxy; for the coordinator's ``--function``."""

import os

from superdl.lambda_prefetch import fetching, push
from superdl.lambda_prefetch.handler import handler as real_handler

FUNCTION = "tests.hostile.function:handler"
VARIABLE = "SUPER_TEST_FUNCTION_CACHE"
_SILENCE_S = 2.0  # instead of 15 s and 20 s: how long it waits for a lost reply

for module, name in (
    (push, "_TIMEOUT_S"),
    (fetching, "_MAX_SILENCE_S"),
):
    assert hasattr(module, name), f"{module.__name__}.{name} was renamed"
    setattr(module, name, _SILENCE_S)


def handler(event, context):
    """Call the real handler."""
    if event.get("cache"):
        event["cache"] = os.environ[VARIABLE]
    return real_handler(event, context)
