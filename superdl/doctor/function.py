"""The function: whether it is there, runs, reaches the cache, and is the SUPER that is installed here.

Of each executor, by its own way: on Lambda its configuration is asked for and one warm event is sent, which
costs one invocation; a local one is started in a process of its own, and on a Ray cluster one on every node.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import ExecutorError
from superdl.doctor.aws import aws_client, is_denied
from superdl.doctor.finding import bad, combined, doubtful, good, skipped

if TYPE_CHECKING:
    from superdl.coordinator.executors.lambda_answers import Warmed
    from superdl.coordinator.executors.lambda_client import Target
    from superdl.coordinator.server.settings import Settings
    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found

__all__ = ["check_function", "check_version", "lambda_target"]

_READ_TIMEOUT_S = 65.0
_WARM_VERSION = 1
_ENOUGH_MB = 512
_ENOUGH_S = 30
_THEIRS = "functions are {}: the sample below shows whether they work"
_NOT_TRIED = (
    "functions are {}: not tried, one executor makes the sample below, {} if it can; see superdl stats"
)
_ONE_PILLOW = "install one Pillow everywhere, for one kind of processor: these executors share a cache"


def check_function(case: Case, seen: Seen) -> Found:
    """Whether each executor's function is there."""
    settings = seen.functions(case)
    looks = {"lambda": _deployed, "local": _started, "ray": _on_nodes}
    return combined([looks[name](case, seen, settings) for name in settings.executors])


def check_version(case: Case, seen: Seen) -> Found:
    """Whether it is our version, decodes as this machine does, and reaches the cache."""
    settings = seen.functions(case)
    looks = {"lambda": _warmed, "local": _own_version, "ray": _version_on_nodes}
    return combined([looks[name](case, seen, settings) for name in settings.executors])


def lambda_target(settings: Settings) -> Target:
    """Which function on Lambda is meant, with its region.

    Raises:
        ConfigError: it cannot be meant, or is in no region.
    """
    from superdl.coordinator.executors.lambda_client import LambdaClient, Target

    named = Target(settings.lambda_function, settings.lambda_region, settings.lambda_endpoint_url)
    client = LambdaClient(named, connections=1, read_timeout_s=1.0)
    try:
        return client.target
    finally:
        client.close()


def _deployed(case: Case, seen: Seen, settings: Settings) -> Found:
    from botocore import exceptions

    from superdl.coordinator.executors.lambda_errors import from_botocore

    target = lambda_target(settings)
    client = aws_client("lambda", region=target.region, endpoint_url=target.endpoint_url)
    try:
        told: dict[str, Any] = client.get_function_configuration(FunctionName=target.function)
    except (exceptions.BotoCoreError, exceptions.ClientError) as error:
        if is_denied(error):
            return _not_shown(case, f"{target} may not be looked at by this identity")
        return bad(str(from_botocore(error, target)), "")
    finally:
        client.close()
    seen.function_name = str(told.get("FunctionName", ""))
    return _judge_configuration(target, told)


def _judge_configuration(target: Target, told: dict[str, Any]) -> Found:
    memory_mb, timeout_s = int(told.get("MemorySize", 0)), int(told.get("Timeout", 0))
    state, updating = str(told.get("State", "Active")), str(told.get("LastUpdateStatus", "Successful"))
    words = f"{target}: {memory_mb} MB, {timeout_s} s, version {told.get('Version', '')}"
    measured = {"memory_mb": memory_mb, "timeout_s": timeout_s}
    if state not in {"Active", "Inactive"} or updating == "Failed":
        why = f"{words}; its state is {state}, its last update {updating}: {told.get('StateReason', '')}"
        return bad(why.rstrip(": "), "wait until it is Active, or deploy it again", **measured)
    if timeout_s < _ENOUGH_S:
        why = f"{words}: a request of 64 samples may take longer, and ends without them"
        return doubtful(why, "raise its timeout to 120 s", **measured)
    if memory_mb < _ENOUGH_MB:
        why = f"{words}: it has {memory_mb / 1769:.2f} cores, and large images may not fit"
        return doubtful(why, "raise its memory to 1769 MB, which is one core", **measured)
    return good(words, **measured)


def _warmed(case: Case, seen: Seen, settings: Settings) -> Found:
    from superdl.coordinator.executors.lambda_answers import read_warmed
    from superdl.coordinator.executors.lambda_client import LambdaClient

    target = lambda_target(settings)
    client = LambdaClient(target, connections=1, read_timeout_s=_READ_TIMEOUT_S)
    event = json.dumps({"super_warm": _WARM_VERSION, "cache": seen.cache}).encode()
    try:
        asked_s = time.time()
        reply = client.invoke(event)
        took_s = time.time() - asked_s
        warmed = read_warmed(reply, target, seen.cache, took_s)
    except ExecutorError as error:
        if is_denied(error.__cause__):
            return _not_shown(case, f"{target} may not be invoked by this identity")
        return bad(str(error), "")
    finally:
        client.close()
    if warmed.clock_s:
        seen.clock("the function", warmed.clock_s, asked_s)
    return _judge_warmed(seen, warmed, settings, took_s)


def _judge_warmed(seen: Seen, warmed: Warmed, settings: Settings, took_s: float) -> Found:
    from superdl.lambda_prefetch.golden import golden_digest

    seen.golden = warmed.golden
    reach = "reaches the cache" if seen.cache else "was not asked to reach a cache, since none is known"
    took = f"answers in {took_s * 1000:.0f} ms"
    words = f"on Lambda it is SUPER {warmed.function_version} as here, {reach}, and {took}"
    if warmed.golden == golden_digest():
        return good(f"{words}; golden images decode as they do here", answer_s=round(took_s, 3))
    words += "; golden images decode otherwise than here (another Pillow or processor)"
    if "local" in settings.executors:
        return bad(words, _ONE_PILLOW)
    return good(
        f"{words}, which does no harm while nothing here decodes for the same cache",
        answer_s=round(took_s, 3),
    )


def _not_shown(case: Case, why: str) -> Found:
    if case.elsewhere:
        return skipped(f"{why}; the coordinator's role invokes it", "")
    remedy = "allow lambda:InvokeFunction and lambda:GetFunctionConfiguration on it to this identity"
    return bad(why, remedy)


def _started(case: Case, seen: Seen, settings: Settings) -> Found:
    if case.elsewhere:
        return _elsewhere("local", "processes of the coordinator's machine", settings)
    try:
        seen.golden, _, took_s = _start("local", replace(settings, workers=1))
    except ExecutorError as error:
        return bad(str(error), "see what it says on standard error above; is SUPER installed as a whole?")
    return good(f"{settings.function} starts in a process of its own, {took_s:.2f} s", start_s=took_s)


def _on_nodes(case: Case, seen: Seen, settings: Settings) -> Found:
    if case.elsewhere:
        return _elsewhere("ray", "tasks of the coordinator's Ray cluster", settings)
    if not seen.cache:
        return skipped("functions on Ray's nodes need a cache that they reach", "name it: --cache")
    try:
        seen.golden_on_ray, seen.places_on_ray, took_s = _start("ray", replace(settings, cache=seen.cache))
    except ExecutorError as error:
        return bad(
            str(error), "see SUPER_RAY_ADDRESS, SUPER_RAY_NODES, and that SUPER is installed on the nodes"
        )
    places = seen.places_on_ray
    why = f"{places} functions fit on the Ray cluster at {settings.ray_address} at once, {took_s:.2f} s"
    return good(f"{why}; nodes that were left out are told above, with the reason", places=places)


def _start(name: str, settings: Settings) -> tuple[str, int, float]:
    """Start an executor and end it: its golden digest, how many requests it takes at once, and the seconds.

    Raises:
        ExecutorError: it does not start.
    """
    from superdl.coordinator.executors.making import make_executor

    async def start() -> tuple[str, int, float]:
        executor = make_executor(name, settings)
        began_s = time.monotonic()
        try:
            await executor.start()
            return executor.golden, executor.scaling.capacity, round(time.monotonic() - began_s, 3)
        finally:
            await executor.close()

    return asyncio.run(start())


def _version_on_nodes(case: Case, seen: Seen, settings: Settings) -> Found:
    if case.elsewhere:
        return _elsewhere("ray", "tasks of the coordinator's Ray cluster", settings)
    if not seen.golden_on_ray:
        return skipped("no function was started on Ray's nodes")
    from superdl.lambda_prefetch.golden import golden_digest
    from superdl.super_wire.version import installed_version

    words = f"on Ray's nodes it is SUPER {installed_version()} as here, and reaches the cache"
    if seen.golden_on_ray == golden_digest():
        return good(words)
    words += "; golden images decode otherwise than here (another Pillow or processor)"
    if "local" in settings.executors:
        return bad(words, _ONE_PILLOW)
    return good(f"{words}, which does no harm while nothing here decodes for the same cache")


def _own_version(case: Case, seen: Seen, settings: Settings) -> Found:
    if case.elsewhere:
        return _elsewhere("local", "processes of the coordinator's machine", settings)
    if not seen.golden:
        return skipped("the local function was not started")
    from superdl.lambda_prefetch.golden import golden_digest
    from superdl.super_wire.version import installed_version

    if seen.golden != golden_digest():
        why = f"{settings.function} decodes golden images otherwise than SUPER's own function does here"
        return doubtful(why, "expected of a function of your own; else install SUPER again")
    return good(f"the local function is this installation's, SUPER {installed_version()}")


def _elsewhere(name: str, where: str, settings: Settings) -> Found:
    """Of a coordinator that runs elsewhere only the first executor's functions are tried, by the sample."""
    first = settings.executors[0]
    return skipped(_THEIRS.format(where) if name == first else _NOT_TRIED.format(where, first))
