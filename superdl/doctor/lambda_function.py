"""The function on AWS Lambda: its configuration, one warm event, which costs an invocation, and AWS's limits.

:mod:`superdl.doctor.function` and :mod:`superdl.doctor.limits` ask here where functions run on Lambda.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import ExecutorError
from superdl.coordinator.executors.lambda_answers import read_warm_reply
from superdl.coordinator.executors.lambda_client import LambdaClient, Target, from_botocore
from superdl.coordinator.executors.messages import warm_event
from superdl.doctor.aws import aws_client, is_denied
from superdl.doctor.case import Started
from superdl.doctor.finding import bad, doubtful, good, skipped

if TYPE_CHECKING:
    from superdl.coordinator.server.settings import Settings
    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found

__all__ = ["check_concurrency", "check_function", "judge_concurrency", "start_function"]

_READ_TIMEOUT_S = 65.0
_ENOUGH_MB = 512
_ENOUGH_S = 30
_NO_LIMIT = -1


def check_function(case: Case, seen: Seen, settings: Settings) -> Found:
    """Whether it is deployed, with memory and time enough."""
    from botocore import exceptions

    target = _target(settings)
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


def start_function(case: Case, seen: Seen, settings: Settings) -> Started | Found:
    """Have one function start, or meet one that is there: what it told, or why it did not."""
    target = _target(settings)
    client = LambdaClient(target, connections=1, read_timeout_s=_READ_TIMEOUT_S)
    try:
        asked_s = time.time()
        reply = client.invoke(json.dumps(warm_event(seen.cache)).encode())
        took_s = time.time() - asked_s
        warmed = read_warm_reply(reply, target, seen.cache, took_s)
    except ExecutorError as error:
        if is_denied(error.__cause__):
            return _not_shown(case, f"{target} may not be invoked by this identity")
        return bad(str(error), "")
    finally:
        client.close()
    if warmed.clock_s:
        seen.clock("the function", warmed.clock_s, asked_s)
    return Started(warmed.fingerprint, answer_s=took_s)


def check_concurrency(seen: Seen, settings: Settings) -> Found:
    """Whether Lambda lets as many functions run at once as the coordinator may ask for."""
    from botocore import exceptions

    target = _target(settings)
    client = aws_client("lambda", region=target.region, endpoint_url=target.endpoint_url)
    name = seen.function_name or target.function
    try:
        account: dict[str, Any] = client.get_account_settings()["AccountLimit"]
        reserved = client.get_function_concurrency(FunctionName=name).get(
            "ReservedConcurrentExecutions", _NO_LIMIT
        )
    except exceptions.ClientError as error:
        words = f"Lambda does not tell its limits: {error}"
        if is_denied(error):
            grant = "allow lambda:GetAccountSettings and lambda:GetFunctionConcurrency to this identity"
            return skipped(words, f"to look, {grant}")
        return skipped(words)
    except exceptions.BotoCoreError as error:
        return doubtful(f"Lambda does not answer: {error}", "check lambda_region and the network")
    finally:
        client.close()
    return judge_concurrency(
        settings.lambda_concurrency,
        whole=int(account.get("ConcurrentExecutions", 0)),
        unreserved=int(account.get("UnreservedConcurrentExecutions", account.get("ConcurrentExecutions", 0))),
        reserved=int(reserved),
    )


def judge_concurrency(wanted: int, *, whole: int, unreserved: int, reserved: int) -> Found:
    """What limits mean for ``wanted`` functions at once; ``reserved`` is -1 where the function has none."""
    limit = unreserved if reserved == _NO_LIMIT else reserved
    which = (
        f"{limit:,} of the account's {whole:,} are unreserved"
        if reserved == _NO_LIMIT
        else f"{limit:,} are reserved"
    )
    words = f"lambda_concurrency is {wanted:,}, {which}"
    measured = {"wanted": wanted, "limit": limit}
    if limit == 0:
        return bad(
            f"{words}: no invocation will be taken", "give the function concurrency: 0 stops it", **measured
        )
    if limit < wanted:
        if reserved == _NO_LIMIT:
            remedy = f"lower --lambda-concurrency to {limit}, or ask for more in Service Quotas"
        else:
            remedy = f"reserve {wanted} for the function, or lower --lambda-concurrency to {limit}"
        return doubtful(f"{words}: more than that is throttled", remedy, **measured)
    return good(words, **measured)


def _target(settings: Settings) -> Target:
    """Which function is meant, with its region; ``ConfigError`` if it cannot be meant, or is in no region."""
    named = Target(settings.lambda_function, settings.lambda_region, settings.lambda_endpoint_url)
    client = LambdaClient(named, connections=1, read_timeout_s=1.0)
    try:
        return client.target
    finally:
        client.close()


def _not_shown(case: Case, why: str) -> Found:
    if case.elsewhere:
        return skipped(f"{why}; the coordinator's role invokes it", "")
    remedy = "allow lambda:InvokeFunction and lambda:GetFunctionConfiguration on it to this identity"
    return bad(why, remedy)
