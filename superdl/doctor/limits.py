"""Limits that are met late, when a run is large: functions at once, the cache's clients, open files."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

from superdl.doctor.aws import aws_client, is_denied
from superdl.doctor.cache import cache_clients
from superdl.doctor.finding import bad, doubtful, good, skipped
from superdl.doctor.function import lambda_target
from superdl.super_wire.errors import CacheError

if TYPE_CHECKING:
    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found

__all__ = ["check_clients", "check_concurrency", "check_open_files", "judge_concurrency"]

_COORDINATORS_OWN = 16
_FEW_FILES = 1024
_NO_LIMIT = -1


def check_concurrency(case: Case, seen: Seen) -> Found:
    """Whether Lambda lets as many functions run at once as the coordinator may ask for."""
    settings = seen.functions(case)
    if "lambda" not in settings.executors:
        return skipped("no function runs on Lambda")
    from botocore import exceptions

    target = lambda_target(settings)
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


def check_clients(case: Case, seen: Seen) -> Found:
    """Whether the cache takes as many clients as functions and readers will be."""
    if not seen.cache:
        return skipped("no cache is known")
    try:
        connected, most = cache_clients(seen.cache)
    except CacheError as error:
        if "NOPERM" not in str(error):
            raise
        return skipped(
            "this user may not ask the cache for its clients (INFO)", "to look, use the coordinator's"
        )
    settings = seen.functions(case)
    if seen.coordinating is None:
        places = {"lambda": settings.lambda_concurrency, "local": settings.workers, "ray": seen.places_on_ray}
    else:
        places = {**seen.capacities}
        if "lambda" in settings.executors:
            places["lambda"] = settings.lambda_concurrency
    unknown = [name for name in settings.executors if not places.get(name)]
    if unknown:
        words = f"how many functions run at once is not known of {', '.join(unknown)}"
        return skipped(words, "see superdl stats, or the coordinator's log")
    functions = sum(places[name] for name in settings.executors)
    more = functions + case.workers + _COORDINATORS_OWN
    words = f"{connected} clients are connected"
    if not most:
        return skipped(f"{words}; how many it takes is not told")
    words += (
        f", it takes {most:,}; {functions} functions, {case.workers} readers of a trainer and a coordinator "
        f"are up to {more}"
    )
    if connected + more > most:
        remedy = "raise maxclients (and the server's limit of open files), or lower --lambda-concurrency"
        return doubtful(f"{words}: too many", remedy, connected=connected, maxclients=most)
    return good(words, connected=connected, maxclients=most)


def check_open_files(case: Case, seen: Seen) -> Found:  # noqa: ARG001  # all checks are asked alike
    """Whether this process may open files enough: each connection and each batch in shared memory is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        why = f"this process may have {shown} files open; connections and batches are files too"
        most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
        return doubtful(
            why, f"ulimit -n {most}" if most > soft else "raise the hard limit (limits.conf, nofile)"
        )
    return good(f"ulimit -n: {shown}")
