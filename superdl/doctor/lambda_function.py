"""The function on AWS Lambda: its configuration, one warm event, which costs an invocation, and AWS's limits.

:mod:`superdl.doctor.function` asks here where functions run on Lambda: the class of that executor says so.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import ExecutorError
from superdl.coordinator.executors.lambda_answers import read_warm_reply
from superdl.coordinator.executors.lambda_client import LambdaClient, Target, from_botocore
from superdl.coordinator.executors.messages import warm_event
from superdl.doctor.aws import aws_client, is_denied
from superdl.doctor.checking import Started, bad, doubtful, good, skipped

if TYPE_CHECKING:
    from superdl.doctor.checking import Case, Finding

__all__ = ["check_concurrency", "check_function", "judge_concurrency", "start_function"]

_READ_TIMEOUT_S = 65.0
_ENOUGH_MB = 512
_ENOUGH_S = 30
_NO_LIMIT = -1


def check_function(case: Case) -> Finding:
    """Whether it is deployed, with memory and time enough."""
    from botocore import exceptions

    target = _target(case)
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


def start_function(case: Case) -> Started | Finding:
    """Have one function start, or meet one that is there: what it told, or why it did not."""
    event = json.dumps(warm_event(case.cache)).encode()
    with closing(_client(case)) as client:
        asked_s = time.time()
        try:
            reply = client.invoke(event)
            took_s = time.time() - asked_s
            warmed = read_warm_reply(reply, client.target, case.cache, took_s)
        except ExecutorError as error:
            if is_denied(error.__cause__):
                return _not_shown(case, f"{client.target} may not be invoked by this identity")
            return bad(str(error), "")
    if warmed.clock_s:
        case.note_clock("the function", warmed.clock_s, asked_s)
    return Started(warmed.fingerprint, answer_s=took_s)


def check_concurrency(case: Case) -> Finding:
    """Whether Lambda lets as many functions run at once as the coordinator may ask for."""
    from botocore import exceptions

    target = _target(case)
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
        case.functions().lambda_concurrency,
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


def _client(case: Case) -> LambdaClient:
    """For the function that is meant; its target names the region too.

    Raises:
        ConfigError: it cannot be meant, or is in no region.
    """
    settings = case.functions()
    named = Target(settings.lambda_function, settings.lambda_region, settings.lambda_endpoint_url)
    return LambdaClient(named, connections=1, read_timeout_s=_READ_TIMEOUT_S)


def _target(case: Case) -> Target:
    with closing(_client(case)) as client:
        return client.target


def _not_shown(case: Case, why: str) -> Finding:
    if case.elsewhere:
        return skipped(f"{why}; the coordinator's role invokes it", "")
    remedy = "allow lambda:InvokeFunction and lambda:GetFunctionConfiguration on it to this identity"
    return bad(why, remedy)
