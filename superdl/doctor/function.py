"""The function: whether it is there, runs, reaches the cache, is the SUPER that is installed here, and how
many of it run at once.

Each executor is started for a moment, with one function, or with all nodes of a Ray cluster. One whose class
names checks of its own is asked by those: on Lambda the configuration is looked at, and one event is sent.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import ExecutorError
from superdl.doctor.aws import aws_client, is_denied
from superdl.doctor.checking import bad, combined, doubtful, good, skipped

if TYPE_CHECKING:
    from superdl.coordinator.executors.lambda_client import LambdaClient, Target
    from superdl.coordinator.server.settings import Settings
    from superdl.doctor.checking import Case, Finding

__all__ = ["check_concurrency", "check_function", "check_version", "judge_concurrency"]

_READ_TIMEOUT_S = 65.0
_WARM_VERSION = 1
_ENOUGH_MB = 512
_ENOUGH_S = 30
_NO_LIMIT = -1
_WHERE = {"local": "processes of the coordinator's machine", "ray": "tasks of the coordinator's Ray cluster"}
_START_REMEDIES = {
    "local": "see what it says on standard error above; is SUPER installed as a whole?",
    "ray": "see SUPER_RAY_ADDRESS, SUPER_RAY_NODES, and that SUPER is installed on the nodes",
}
_NOT_STARTED = {
    "local": "the local function was not started",
    "ray": "no function was started on Ray's nodes",
}
_ONE_PILLOW = "install one Pillow everywhere, for one kind of processor: these executors share a cache"


def check_function(case: Case) -> Finding:
    """Whether each executor's function is there."""
    settings = case.functions()
    return combined(
        [
            _deployed(case, settings) if name == "lambda" else _started(case, name, settings)
            for name in settings.executors
        ]
    )


def check_version(case: Case) -> Finding:
    """Whether it is our version, decodes as this machine does, and reaches the cache."""
    settings = case.functions()
    return combined(
        [
            _warmed(case, settings) if name == "lambda" else _version(case, name, settings)
            for name in settings.executors
        ]
    )


def check_concurrency(case: Case) -> Finding:
    """Whether Lambda lets as many functions run at once as the coordinator may ask for."""
    settings = case.functions()
    if "lambda" not in settings.executors:
        return skipped("no function runs on Lambda")
    from botocore import exceptions

    target = _target(settings)
    name = case.function_name or target.function  # it has no concurrency of its own by version
    try:
        with closing(aws_client("lambda", region=target.region, endpoint_url=target.endpoint_url)) as client:
            account: dict[str, Any] = client.get_account_settings()["AccountLimit"]
            answer: dict[str, Any] = client.get_function_concurrency(FunctionName=name)
    except exceptions.ClientError as error:
        words = f"Lambda does not tell its limits: {error}"
        grant = "allow lambda:GetAccountSettings and lambda:GetFunctionConcurrency to this identity"
        return skipped(words, f"to look, {grant}" if is_denied(error) else "")
    except exceptions.BotoCoreError as error:
        return doubtful(f"Lambda does not answer: {error}", "check lambda_region and the network")
    whole = int(account.get("ConcurrentExecutions", 0))
    return judge_concurrency(
        settings.lambda_concurrency,
        whole=whole,
        unreserved=int(account.get("UnreservedConcurrentExecutions", whole)),
        reserved=int(answer.get("ReservedConcurrentExecutions", _NO_LIMIT)),
    )


def judge_concurrency(wanted: int, *, whole: int, unreserved: int, reserved: int) -> Finding:
    """What limits mean for ``wanted`` functions at once; ``reserved`` is -1 where the function has none."""
    if reserved == _NO_LIMIT:
        limit, which = unreserved, f"{unreserved:,} of the account's {whole:,} are unreserved"
        remedy = f"lower --lambda-concurrency to {limit}, or ask for more in Service Quotas"
    else:
        limit, which = reserved, f"{reserved:,} are reserved"
        remedy = f"reserve {wanted} for the function, or lower --lambda-concurrency to {limit}"
    words = f"lambda_concurrency is {wanted:,}, {which}"
    if limit == 0:
        remedy = "give the function concurrency: 0 stops it"
        return bad(f"{words}: no invocation will be taken", remedy, wanted=wanted, limit=limit)
    if limit < wanted:
        return doubtful(f"{words}: more than that is throttled", remedy, wanted=wanted, limit=limit)
    return good(words, wanted=wanted, limit=limit)


def _client(settings: Settings) -> LambdaClient:
    """For the function that is meant; its target names the region too.


    named = Target(settings.lambda_function, settings.lambda_region, settings.lambda_endpoint_url)
    return LambdaClient(named, connections=1, read_timeout_s=_READ_TIMEOUT_S)


def _target(settings: Settings) -> Target:
    with closing(_client(settings)) as client:
        return client.target


def _deployed(case: Case, settings: Settings) -> Finding:
    from botocore import exceptions

    from superdl.coordinator.executors.lambda_errors import from_botocore

    target = _target(settings)
    try:
        with closing(aws_client("lambda", region=target.region, endpoint_url=target.endpoint_url)) as client:
            told: dict[str, Any] = client.get_function_configuration(FunctionName=target.function)
    except (exceptions.BotoCoreError, exceptions.ClientError) as error:
        if is_denied(error):
            return _not_shown(case, f"{target} may not be looked at by this identity")
        return bad(str(from_botocore(error, target)), "")
    case.function_name = str(told.get("FunctionName", ""))
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


def _warmed(case: Case, settings: Settings) -> Finding:
    from superdl.coordinator.executors.lambda_answers import read_warmed
    from superdl.lambda_prefetch.golden import golden_digest

    event = json.dumps({"super_warm": _WARM_VERSION, "cache": case.cache}).encode()
    with closing(_client(settings)) as client:
        asked_s = time.time()
        try:
            reply = client.invoke(event)
            took_s = time.time() - asked_s
            warmed = read_warmed(reply, client.target, case.cache, took_s)
        except ExecutorError as error:
            if is_denied(error.__cause__):
                return _not_shown(case, f"{client.target} may not be invoked by this identity")
            return bad(str(error), "")
    if warmed.clock_s:
        case.note_clock("the function", warmed.clock_s, asked_s)
    reach = "reaches the cache" if case.cache else "was not asked to reach a cache, since none is known"
    took = f"answers in {took_s * 1000:.0f} ms"
    words = f"on Lambda it is SUPER {warmed.function_version} as here, {reach}, and {took}"
    if warmed.golden == golden_digest():
        return good(f"{words}; golden images decode as they do here", answer_s=round(took_s, 3))
    return _decodes_otherwise(words, settings, answer_s=round(took_s, 3))


def _not_shown(case: Case, why: str) -> Finding:
    if case.elsewhere:
        return skipped(f"{why}; the coordinator's role invokes it", "")
    remedy = "allow lambda:InvokeFunction and lambda:GetFunctionConfiguration on it to this identity"
    return bad(why, remedy)


def _decodes_otherwise(words: str, settings: Settings, **measured: float) -> Finding:
    words += "; golden images decode otherwise than here (another Pillow or processor)"
    if "local" in settings.executors:
        return bad(words, _ONE_PILLOW)
    return good(f"{words}, which does no harm while nothing here decodes for the same cache", **measured)


def _started(case: Case, name: str, settings: Settings) -> Finding:
    """Of an executor whose functions this machine can start: they are, and end again."""
    if case.elsewhere:
        return _elsewhere(name, settings)
    if name == "ray" and not case.cache:
        return skipped("functions on Ray's nodes need a cache that they reach", "name it: --cache")
    began_s = time.monotonic()
    try:
        places = asyncio.run(
            _start(case, name, replace(settings, workers=1, cache=case.cache or settings.cache))
        )
    except ExecutorError as error:
        return bad(str(error), _START_REMEDIES[name])
    took_s = round(time.monotonic() - began_s, 3)
    if name == "local":
        return good(f"{settings.function} starts in a process of its own, {took_s:.2f} s", start_s=took_s)
    case.capacities[name] = places
    why = f"{places} functions fit on the Ray cluster at {settings.ray_address} at once, {took_s:.2f} s"
    return good(f"{why}; nodes that were left out are told above, with the reason", places=places)


async def _start(case: Case, name: str, settings: Settings) -> int:
    """Start an executor and end it: how many requests it takes at once.

    Raises:
        ExecutorError: it does not start.
    """
    from superdl.coordinator.server.trust import executor_context

    executor = make_executor(name, settings)
    try:
        await executor.start()
        case.fingerprints[name] = executor.golden
        return executor.scaling.capacity
    finally:
        await executor.close()


def _version(case: Case, name: str, settings: Settings) -> Finding:
    """Of an executor whose functions were started here: what they decode, beside what this process does."""
    if case.elsewhere:
        return _elsewhere(name, settings)
    if name not in case.fingerprints:
        return skipped(_NOT_STARTED[name])
    from superdl.lambda_prefetch.golden import golden_digest
    from superdl.super_wire.version import installed_version

    same = case.fingerprints[name] == golden_digest()
    if name == "ray":
        words = f"on Ray's nodes it is SUPER {installed_version()} as here, and reaches the cache"
        return good(words) if same else _decodes_otherwise(words, settings)
    if not same:
        why = f"{settings.function} decodes golden images otherwise than SUPER's own function does here"
        return doubtful(why, "expected of a function of your own; else install SUPER again")
    return good(f"the local function is this installation's, SUPER {installed_version()}")


def _elsewhere(name: str, settings: Settings) -> Finding:
    """Of a coordinator that runs elsewhere only the first executor's functions are tried, by the sample."""
    first, where = settings.executors[0], _WHERE[name]
    if name == first:
        return skipped(f"functions are {where}: the sample below shows whether they work")
    return skipped(
        f"functions are {where}: not tried, one executor makes the sample below, {first} if it can; see "
        "superdl stats"
    )
