"""One function on AWS Lambda, invoked by boto3: a blocking call, an answer or an executor's error.

It retries nothing: the core does, and it must see throttling to adapt to it. What the Invoke API, and the way
there, say of a failure becomes one of the executors' errors, with function, reason and remedy. The threads
that make such calls beside an event loop are here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore import exceptions
from botocore.config import Config

from superdl.coordinator.catalog.s3_client import NO_CREDENTIALS
from superdl.coordinator.executors.base import (
    ConnectionLostError,
    ExecutorError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
    ThrottledError,
)
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import text_without_credentials

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_REQUEST_BYTES", "CallingThreads", "LambdaClient", "Reply", "Target", "from_botocore"]

_log = logging.getLogger(__name__)

_Value = TypeVar("_Value")

MAX_REQUEST_BYTES = {"RequestResponse": 6 * 2**20, "Event": 2**20}
"""What Lambda takes, by invocation type."""

_CONNECT_TIMEOUT_S = 5
_NAME = re.compile(
    r"(?:arn:aws[a-zA-Z-]*:lambda:(?P<region>[a-z0-9-]+):)?(?:\d{12}:)?(?:function:)?"
    r"[a-zA-Z0-9_.-]+(?::(?:\$LATEST(?:\.PUBLISHED)?|[a-zA-Z0-9_-]+))?"
)

_MAX_WORDS = 600
_MAX_KIND = 80

_THROTTLED = frozenset({"EC2ThrottledException", "RequestLimitExceeded", "Throttling", "ThrottlingException"})
_TOO_LARGE = frozenset({"RequestTooLargeException", "SerializedRequestEntityTooLargeException"})
_BAD_REQUEST = frozenset({"InvalidRequestContentException", "UnsupportedMediaTypeException"})
_FORBIDDEN = frozenset({"AccessDenied", "AccessDeniedException"})
_BAD_CREDENTIALS = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "IncompleteSignatureException"}
    | {"InvalidClientTokenId", "InvalidSignatureException", "MissingAuthenticationToken"}
    | {"MissingAuthenticationTokenException", "SignatureDoesNotMatch", "UnrecognizedClientException"}
)
_NEVER_REACHED = (
    exceptions.ConnectTimeoutError,
    exceptions.EndpointConnectionError,
    exceptions.ProxyConnectionError,
    exceptions.SSLError,
)
_NOT_READY = frozenset(
    {"CodeArtifactUserPendingException", "ENINotReadyException", "ResourceConflictException"}
) | {
    "ResourceNotReadyException",
    "SnapStartNotReadyException",
}
# What AWS finds wrong with the function's own deployment: the beginning of the error's code, and the remedy.
_DEPLOYMENT = (
    ("KMS", "let its role decrypt with the KMS key of its environment variables, and enable the key"),
    ("SubnetIPAddressLimit", "give its subnets more free addresses, or name larger ones"),
    ("ENI", "ask AWS for more network interfaces in this region, or lower lambda_concurrency"),
    ("InvalidSubnet", "deploy it with subnets that exist"),
    ("InvalidSecurityGroup", "deploy it with security groups that exist"),
    ("EC2AccessDenied", "let its role make network interfaces (AWSLambdaVPCAccessExecutionRole)"),
    ("InvalidZipFile", "build its package again (make lambda-zip) and deploy it"),
    ("InvalidRuntime", "deploy it with a Python runtime that Lambda still runs"),
    ("Runtime", "deploy it with a Python runtime that Lambda still runs"),
    ("RecursiveInvocation", "let nothing that the function writes to invoke it"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """Which function, for messages too: ``the function super-prefetch (us-east-1)``."""

    function: str
    region: str = ""
    endpoint_url: str = ""

    def __str__(self) -> str:
        place = text_without_credentials(self.endpoint_url) or self.region
        return f"the function {self.function}{f' ({place})' if place else ''}"


@dataclass(frozen=True, slots=True)
class Reply:
    """What the Invoke API answered. ``function_error`` is empty unless the function failed; ``log_result`` is
    the end of its log in base64.
    """

    payload: bytes
    request_id: str
    function_error: str = ""
    log_result: str = ""


class LambdaClient:
    """A client for any number of threads.

    Args:
        target: which function; without a region, that of its ARN or of AWS's own settings.
        connections: how many threads may use it at once without waiting.
        read_timeout_s: how long an answer is waited for; longer than the function may run.

    Raises:
        ConfigError: there is no region, or a name, region or endpoint cannot be meant.
        ExecutorError: AWS's own settings are wrong.
    """

    def __init__(self, target: Target, *, connections: int, read_timeout_s: float) -> None:
        session, region = _session_and_region(target)
        config = Config(
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=connections,
            tcp_keepalive=True,
            parameter_validation=False,  # a request is made here alone, and each check takes time
            disable_request_compression=True,
        )
        self.target = Target(target.function, region, target.endpoint_url)
        try:
            self._client: Any = session.client(
                "lambda", config=config, region_name=region, endpoint_url=target.endpoint_url or None
            )
        except (ValueError, exceptions.InvalidRegionError) as error:
            msg = (
                f"{self.target} has no address: {text_without_credentials(str(error))}; "
                "lambda_endpoint_url is a URL such as http://127.0.0.1:9001, lambda_region a region such as "
                "us-east-1"
            )
            raise ConfigError(msg) from error
        except exceptions.BotoCoreError as error:
            raise from_botocore(error, self.target) from error

    def invoke(self, payload: bytes, kind: str = "RequestResponse") -> Reply:
        """Invoke the function, and wait for its answer unless ``kind`` is ``Event``.

        Raises:
            ExecutorError: any of its kinds, but for what the function itself raises: see
                :attr:`Reply.function_error`.
        """
        if len(payload) > MAX_REQUEST_BYTES[kind]:
            msg = (
                f"a request of {len(payload):,} bytes is more than Lambda takes ({MAX_REQUEST_BYTES[kind]:,} "
                f"for {kind}): lower request_samples"
            )
            error = PayloadTooLargeError(msg)
            error.refused = True
            raise error
        arguments = {"FunctionName": self.target.function, "InvocationType": kind, "Payload": payload}
        if kind == "RequestResponse":
            arguments["LogType"] = "Tail"  # holds the report of what is billed
        answer = self._mapped(lambda: self._client.invoke(**arguments))
        return Reply(
            self._mapped(answer["Payload"].read),
            request_id=str(answer.get("ResponseMetadata", {}).get("RequestId", "")),
            function_error=str(answer.get("FunctionError", "")),
            log_result=str(answer.get("LogResult", "")),
        )

    def close(self) -> None:
        """Close the connections that are in no use."""
        self._client.close()

    def _mapped(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # its parser raises anything where an answer is none of AWS's
            raise from_botocore(error, self.target) from error


def _session_and_region(target: Target) -> tuple[Any, str]:
    named = _NAME.fullmatch(target.function)
    if named is None:
        msg = f"lambda_function is a function's name, ARN or name:alias; not {target.function[:200]!r}"
        raise ConfigError(msg)
    try:
        # A session of its own: boto3's default session may not be used by two threads at once.
        session = boto3.session.Session()
        own = session.region_name
    except exceptions.BotoCoreError as error:
        raise from_botocore(error, target) from error
    in_arn = named["region"] or ""
    if in_arn and target.region and in_arn != target.region:
        msg = f"lambda_function is in the region {in_arn} and lambda_region says {target.region}: correct one"
        raise ConfigError(msg)
    region = target.region or in_arn or own or os.environ.get("AWS_REGION", "")  # all that Fargate sets
    if not region:
        msg = (
            f"{target} is in no region: set lambda_region (SUPER_LAMBDA_REGION) or AWS_REGION, or name the "
            "function by its ARN"
        )
        raise ConfigError(msg)
    return session, region


def from_botocore(error: Exception, target: Target) -> ExecutorError:
    """What botocore raised by an invocation, as an executor's error."""
    if isinstance(error, exceptions.ClientError):
        return _from_answer(error, target)
    if isinstance(error, exceptions.ReadTimeoutError):
        return FunctionTimedOutError(f"{target} did not answer in time")
    if isinstance(error, NO_CREDENTIALS):
        return _hopeless(
            f"{target} cannot be invoked: the coordinator has no usable AWS credentials ({error}): set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE where it runs, or give its machine a "
            "role"
        )
    if isinstance(error, _NEVER_REACHED):
        return ExecutorError(
            f"{target} cannot be reached ({text_without_credentials(str(error))}): check lambda_region, "
            "lambda_endpoint_url, the network; a VPC without NAT needs an interface endpoint for Lambda"
        )
    if isinstance(error, (exceptions.ConnectionError, exceptions.HTTPClientError)):
        return ConnectionLostError(
            f"the connection to {target} broke before it had answered: "
            + text_without_credentials(str(error))
        )
    return ExecutorError(f"{target} could not be invoked: {type(error).__name__}: {str(error)[:_MAX_WORDS]}")


def _from_answer(error: exceptions.ClientError, target: Target) -> ExecutorError:  # noqa: PLR0911  # one per kind
    answer: dict[str, Any] = dict(error.response)
    details = answer.get("Error", {})
    code = str(details.get("Code", ""))[:_MAX_KIND]
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    words = f"{code}: {str(details.get('Message', '') or error)[:_MAX_WORDS]}"
    if status == 429 or code in _THROTTLED:  # noqa: PLR2004  # Too Many Requests
        reason = str(answer.get("Reason", "") or code)[:_MAX_KIND]
        return ThrottledError(f"{target} is throttled ({reason}): {_throttling_remedy(reason)}")
    if status == 413 or code in _TOO_LARGE:  # noqa: PLR2004  # Payload Too Large
        return _refused(
            PayloadTooLargeError(f"{target} takes no request this large ({words}): lower request_samples")
        )
    if code in _BAD_REQUEST:
        return _refused(FunctionRaisedError(f"{target} was not invoked, the request is refused ({words})"))
    if code == "ResourceNotFoundException":
        return _hopeless(
            f"{target} does not exist ({words}): deploy it, or correct lambda_function and lambda_region "
            "(SUPER_LAMBDA_FUNCTION, SUPER_LAMBDA_REGION)"
        )
    if code in _FORBIDDEN:
        return ExecutorError(
            f"the coordinator may not invoke {target} ({words}): grant its credentials lambda:InvokeFunction "
            "on this function"
        )
    if code in _BAD_CREDENTIALS:
        return ExecutorError(
            f"{target} cannot be invoked, AWS does not accept the coordinator's credentials ({words}): renew "
            "them, and see that lambda_region is the function's and that this machine's clock is right"
        )
    if code in _NOT_READY:
        return ExecutorError(f"{target} is not ready yet ({words}): wait until its state is Active")
    for beginning, remedy in _DEPLOYMENT:
        if code.startswith(beginning):
            return ExecutorError(f"{target} cannot be started ({words}): {remedy}")
    return ExecutorError(f"{target} could not be invoked ({words or status})")


def _hopeless(msg: str) -> ExecutorError:
    error = ExecutorError(msg)
    error.wrong_settings = True
    return error


def _refused(error: ExecutorError) -> ExecutorError:
    error.refused = True
    return error


def _throttling_remedy(reason: str) -> str:
    if reason.startswith("Reserved"):
        return "raise the function's reserved concurrency, or lower lambda_concurrency"
    return "lower lambda_concurrency, or ask AWS for a higher concurrency quota in this region"


class CallingThreads:
    """Up to ``limit`` threads for blocking calls, started as they are needed; used from one event loop.

    The threads of :mod:`concurrent.futures` are waited for when the interpreter ends, however long a call
    still waits for its answer. These are not: :meth:`close` abandons what they are doing.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        self._under_way: set[asyncio.Future[Any]] = set()
        self._threads = 0
        self._is_short = False
        self._closed: Exception | None = None

    async def run(self, call: Callable[[], _Value]) -> _Value:
        """The value of ``call()``, or its error. One that is cancelled before it has begun never begins.

        Raises:
            ThrottledError: this machine starts no thread at all for now.
        """
        if self._closed is not None:
            raise self._closed
        if self._threads < min(len(self._under_way) + 1, self._limit):
            self._start_one()
        future: asyncio.Future[_Value] = asyncio.get_running_loop().create_future()
        self._under_way.add(future)
        self._calls.put((call, future))
        return await future

    def close(self, reason: Exception) -> None:
        """Begin nothing more, and abandon what is under way: it fails with ``reason``."""
        self._closed = reason
        for future in self._under_way:
            if not future.done():
                future.set_exception(reason)
        for _ in range(self._threads):
            self._calls.put(None)

    def _start_one(self) -> None:
        """One thread more; where the machine has none to give, those that there are do all."""
        thread = threading.Thread(target=self._work, name=f"{self._name}-{self._threads + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            msg = (
                f"no more than {self._threads} of {self._limit} threads can be started ({error}): raise the "
                "limit on processes (ulimit -u, TasksMax, pids.max) or lower lambda_concurrency"
            )
            if not self._threads:
                raise ThrottledError(msg) from error
            if not self._is_short:
                _log.warning("%s", msg)
            self._is_short = True
            return
        self._threads += 1

    def _work(self) -> None:
        while (work := self._calls.get()) is not None:
            call, future = work
            value, error = None, None
            try:
                if not future.done():
                    value = call()
            except BaseException as raised:  # noqa: BLE001  # raised where the value is waited for
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(self._ended, future, value, error)
            del work, call, future, value, error  # a thread that waits holds no answer in memory

    def _ended(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._under_way.discard(future)
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
