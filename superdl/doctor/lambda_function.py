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
from superdl.doctor.aws import aws_client
from superdl.doctor.checking import CheckStatus, bad, doubtful, good, skipped
from superdl.doctor.function import judge_decoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.coordinator.server.settings import Settings
    from superdl.doctor.checking import Case, Finding
    from superdl.super_wire.executors import ExecutorKind

__all__ = ["judge_concurrency", "looks"]

_READ_TIMEOUT_S = 65.0
_ENOUGH_MB = 512
_ENOUGH_S = 30
_NO_LIMIT = -1


def looks(kind: ExecutorKind, case: Case, settings: Settings) -> list[Finding]:
    """Whether it is deployed, answers as ours, and may run as often at once as is wanted.

    Raises:
        ConfigError: the settings name no function, or one in no region.
    """
    from botocore import exceptions

    named = Target(settings.lambda_function, settings.lambda_region, settings.lambda_endpoint_url)
    with closing(LambdaClient(named, connections=1, read_timeout_s=_READ_TIMEOUT_S)) as function:
        target = function.target  # names the region too
        with closing(aws_client("lambda", region=target.region, endpoint_url=target.endpoint_url)) as client:
            try:
                told: dict[str, Any] = client.get_function_configuration(FunctionName=target.function)
            except (exceptions.BotoCoreError, exceptions.ClientError) as error:
                return [_refused(case, from_botocore(error, target), error)]
            deployed = _judge_configuration(target, told)
            if deployed.verdict is CheckStatus.BAD:
                return [deployed]
            answered = _answered(kind, case, settings, function)
            return [deployed, answered, _limits(settings, client, str(told.get("FunctionName", "")))]


def _judge_configuration(target: Target, told: Mapping[str, Any]) -> Finding:
    """Whether it is active, with memory and time enough."""
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


def _answered(kind: ExecutorKind, case: Case, settings: Settings, function: LambdaClient) -> Finding:
    """What one function tells that starts, or that is there."""
    asked_s = time.time()
    try:
        reply = function.invoke(json.dumps(warm_event(case.cache)).encode())
        warmed = read_warm_reply(reply, function.target, case.cache, time.time() - asked_s)
    except ExecutorError as error:
        return _refused(case, error, error.__cause__)
    return judge_decoder(kind, case, settings, warmed.fingerprint)


def _limits(settings: Settings, client: Any, name: str) -> Finding:
    """Whether Lambda lets as many functions run at once as the coordinator may ask for."""
    from botocore import exceptions

    try:
        account: dict[str, Any] = client.get_account_settings()["AccountLimit"]
        answer: dict[str, Any] = client.get_function_concurrency(FunctionName=name)
    except (exceptions.BotoCoreError, exceptions.ClientError) as error:
        return skipped(f"Lambda does not tell its limits on functions at once: {error}")
    return judge_concurrency(
        settings.lambda_concurrency,
        unreserved=int(account.get("UnreservedConcurrentExecutions", account["ConcurrentExecutions"])),
        reserved=int(answer.get("ReservedConcurrentExecutions", _NO_LIMIT)),
    )


def judge_concurrency(wanted: int, *, unreserved: int, reserved: int) -> Finding:
    """What limits mean for ``wanted`` functions at once; ``reserved`` is -1 where the function has none."""
    if reserved == _NO_LIMIT:
        limit, which = unreserved, f"{unreserved:,} of the account's are unreserved"
        remedy = f"lower --lambda-concurrency to {limit}, or ask for more in Service Quotas"
    else:
        limit, which = reserved, f"{reserved:,} are reserved"
        remedy = f"reserve {wanted} for the function, or lower --lambda-concurrency to {limit}"
    words = f"lambda_concurrency is {wanted:,}, {which}"
    if limit == 0:
        return bad(f"{words}: no invocation will be taken", "give the function concurrency: 0 stops it")
    if limit < wanted:
        return doubtful(f"{words}: more than that is throttled", remedy)
    return good(words, wanted=wanted, limit=limit)


def _refused(case: Case, failure: ExecutorError, cause: BaseException | None) -> Finding:
    """It is not there or cannot be asked; with a coordinator elsewhere, its role's rights are what counts."""
    code = str(getattr(cause, "response", {}).get("Error", {}).get("Code", ""))
    if case.elsewhere and code.startswith("AccessDenied"):
        return skipped(
            f"not to be looked at from here, and no fault: the coordinator's role invokes it ({failure})"
        )
    return bad(str(failure), "")
