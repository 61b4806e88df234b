"""The real function, which writes to the cache through the trial's proxy; a coordinator's ``--function``."""

import os

from superdl.lambda_prefetch import fetching, push
from superdl.lambda_prefetch.handler import handler as real_handler

FUNCTION = "tests.hostile.function:handler"
VARIABLE = "SUPER_TEST_FUNCTION_CACHE"
_SILENCE_S = 2.0  # in place of 15 s and 20 s: what was lost is waited for as long

for module, name in (
    (push, "_TIMEOUT_S"),
    (fetching, "_MAX_SILENCE_S"),
):
    assert hasattr(module, name), f"{module.__name__}.{name} has another name now"
    setattr(module, name, _SILENCE_S)


def handler(event, context):
    """The real answer."""
    if event.get("cache"):
        event["cache"] = os.environ[VARIABLE]
    return real_handler(event, context)
