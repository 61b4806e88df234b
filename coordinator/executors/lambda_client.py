"""A blocking boto3 client for one AWS Lambda function."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import boto3
from botocore import exceptions
from botocore.config import Config

from superdl.coordinator.core import FailureKind
from superdl.coordinator.executors.base import MAX_KIND, MAX_WORDS, ExecutorError
from superdl.super_wire.display import clean_text, text_without_credentials
from superdl.super_wire.errors import ConfigError

_CONNECT_TIMEOUT_S = 5
_NAME = re.compile(
    r"(?:arn:aws[a-zA-Z-]*:lambda:(?P<region>[a-z0-9-]+):)?(?:\d{12}:)?(?:function:)?"
    r"[a-zA-Z0-9_.-]+(?::(?:\$LATEST(?:\.PUBLISHED)?|[a-zA-Z0-9_-]+))?"
)
_OUT_OF_TIME = re.compile(r"Task timed out after [\d.]+ seconds")
_KILLED = re.compile(r"signal: \w+|Runtime exited")


class _Failure(NamedTuple):
    codes: str  # error and status codes of the Invoke API, types of functions' errors, botocore's classes
    message: str
    kind: FailureKind = FailureKind.UNAVAILABLE
    refused: bool = False
    wrong_settings: bool = False
    # The function may have run until the call failed.
    may_have_run: bool = False


_TIMED_OUT = _Failure(
    "Sandbox.Timedout",
    "{target} exceeded its own time limit ({words}). Raise its timeout, or lower request_samples",
    FailureKind.TIMED_OUT,
)
_CRASH = _Failure(
    "Extension.Crash Runtime.ExitError Sandbox.Failure", "{target} crashed ({words})", FailureKind.CRASHED
)
_OUT_OF_MEMORY = _Failure(
    "Runtime.OutOfMemory", "{target} crashed ({words}). Its memory may be too small", FailureKind.CRASHED
)
_RAISED = _Failure("", "{target} raised {words}", FailureKind.RAISED)
_UNKNOWN = _Failure("", "cannot invoke {target} ({words})")
_OF_CALLS = (
    # Reported by the Invoke API.
    _Failure(
        "429 TooManyRequestsException EC2ThrottledException RequestLimitExceeded Throttling "
        "ThrottlingException",
        "{target} is throttled ({words}). Lower lambda_concurrency, raise the function's reserved "
        "concurrency if it has one, or request a higher quota from AWS for this region",
        FailureKind.THROTTLED,
    ),
    _Failure(
        "413 RequestTooLargeException SerializedRequestEntityTooLargeException "
        "InvalidRequestContentException UnsupportedMediaTypeException",
        "{target} refused the request ({words}). If it is too large, lower request_samples",
        FailureKind.RAISED,
        refused=True,
    ),
    _Failure(
        "ResourceNotFoundException",
        "{target} does not exist ({words}). Deploy it, or correct lambda_function and lambda_region "
        "(SUPER_LAMBDA_FUNCTION, SUPER_LAMBDA_REGION)",
        wrong_settings=True,
    ),
    _Failure(
        "AccessDenied AccessDeniedException",
        "the coordinator is not allowed to invoke {target} ({words}). Grant its credentials "
        "lambda:InvokeFunction on this function",
    ),
    _Failure(
        "ExpiredToken ExpiredTokenException IncompleteSignature IncompleteSignatureException "
        "InvalidClientTokenId InvalidSignatureException MissingAuthenticationToken "
        "MissingAuthenticationTokenException SignatureDoesNotMatch UnrecognizedClientException",
        "cannot invoke {target}: AWS does not accept the coordinator's credentials ({words}). Renew them, "
        "and check lambda_region and this machine's clock",
    ),
    # Raised by boto3.
    _Failure(
        "NoCredentialsError PartialCredentialsError CredentialRetrievalError ProfileNotFound "
        "TokenRetrievalError SSOError",
        "cannot invoke {target}: the coordinator has no usable AWS credentials ({words}). Set "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, where it runs, or assign a role to "
        "its machine",
        wrong_settings=True,
    ),
    _Failure(
        "ConnectTimeoutError EndpointConnectionError ProxyConnectionError SSLError",
        "cannot reach {target} ({words}). Check lambda_region, lambda_endpoint_url and the network. A VPC "
        "without NAT needs an interface endpoint for Lambda",
    ),
    _Failure(
        "ReadTimeoutError", "{target} did not respond in time", FailureKind.TIMED_OUT, may_have_run=True
    ),
    # Base classes of botocore's other errors: the request may have arrived.
    _Failure(
        "ConnectionError HTTPClientError",
        "the connection to {target} broke before it answered: {words}",
        may_have_run=True,
    ),
)
_OF_FUNCTIONS = (
    _TIMED_OUT,
    _CRASH,
    _OUT_OF_MEMORY,
    _Failure(
        "Runtime.ImportModuleError Runtime.HandlerNotFound Runtime.UserCodeSyntaxError",
        "{target} does not start ({words}). Build its package for its architecture and Python version "
        "(make lambda-zip), and set its handler to superdl.lambda_prefetch.handler.handler",
        FailureKind.RAISED,
    ),
    _Failure(
        "Function.ResponseSizeTooLarge",
        "the result of {target} exceeds Lambda's limit ({words}). Lower request_samples",
        FailureKind.RAISED,
    ),
    _Failure(
        "CacheError CacheUnreachableError WrongPasswordError",
        "{target} cannot use the cache ({words}). Check that its own SUPER_CACHE_* settings are right, that "
        "it is in the cache's VPC, and that the security groups allow it",
        FailureKind.RAISED,
    ),
)
_BY_CODE = {code: failure for failure in _OF_CALLS for code in failure.codes.split()}
_BY_TYPE = {code: failure for failure in _OF_FUNCTIONS for code in failure.codes.split()}


@dataclass(frozen=True, slots=True)
class Target:
    """A function's name and region. Formats as ``the function super-prefetch (us-east-1)``."""

    function: str
    region: str = ""
    endpoint_url: str = ""

    def __str__(self) -> str:
        location = text_without_credentials(self.endpoint_url) or self.region
        return f"the function {self.function}{f' ({location})' if location else ''}"


class Reply(NamedTuple):
    """A function's response and the duration of the call in seconds."""

    payload: bytes
    ran_s: float


class LambdaClient:
    """A Lambda client that up to ``connections`` threads can share.

    ``read_timeout_s`` must exceed the function's timeout. Raises ``ConfigError`` if a name, region or
    endpoint is invalid, or if no region is given in ``target``, its ARN or the AWS configuration.
    """

    def __init__(self, target: Target, *, connections: int, read_timeout_s: float) -> None:
        session, region = _session_and_region(target)
        config = Config(
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=read_timeout_s,
            # A single attempt: the core retries, and must see throttling to adapt to it.
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=connections,
            tcp_keepalive=True,
            parameter_validation=False,  # takes time, and only invoke() makes requests
            disable_request_compression=True,
        )
        self.target = Target(target.function, region, target.endpoint_url)
        try:
            self._client: Any = session.client(
                "lambda", config=config, region_name=region, endpoint_url=target.endpoint_url or None
            )
        except (ValueError, exceptions.InvalidRegionError) as error:
            raise ConfigError(
                f"{self.target} has no valid address: {text_without_credentials(str(error))}. Set "
                "lambda_endpoint_url to a URL such as http://127.0.0.1:9001, or lambda_region to a region "
                "such as us-east-1"
            ) from error
        except exceptions.BotoCoreError as error:
            raise from_botocore(error, self.target) from error

    def invoke(self, payload: bytes) -> Reply:
        """Invoke the function and return its response. Raises :class:`ExecutorError` on failure."""
        began_s = time.monotonic()
        try:
            answer = self._client.invoke(FunctionName=self.target.function, Payload=payload)
            # Reading the body can fail like the call itself.
            body = answer["Payload"].read()
        except Exception as error:  # botocore's parser can raise anything
            raise from_botocore(error, self.target, time.monotonic() - began_s) from error
        ran_s = time.monotonic() - began_s
        if answer.get("FunctionError"):
            raise from_function(body, self.target, ran_s)
        return Reply(body, ran_s)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()


def _session_and_region(target: Target) -> tuple[Any, str]:
    named = _NAME.fullmatch(target.function)
    if named is None:
        raise ConfigError(
            f"lambda_function must be a name, an ARN or name:alias, not {target.function[:200]!r}"
        )
    try:
        # Use a separate session, because boto3's default session is not thread-safe.
        session = boto3.session.Session()
        own = session.region_name
    except exceptions.BotoCoreError as error:
        raise from_botocore(error, target) from error
    in_arn = named["region"] or ""
    if in_arn and target.region and in_arn != target.region:
        raise ConfigError(
            f"lambda_function is in the region {in_arn}, but lambda_region is {target.region}. Correct one "
            "of them"
        )
    region = target.region or in_arn or own or os.environ.get("AWS_REGION", "")  # Fargate sets only this
    if not region:
        raise ConfigError(
            f"{target} has no region. Set lambda_region (SUPER_LAMBDA_REGION) or AWS_REGION, or set "
            "lambda_function to an ARN"
        )
    return session, region


def from_botocore(error: Exception, target: Target, took_s: float = 0.0) -> ExecutorError:
    """Convert a botocore error into an :class:`ExecutorError`. The call took ``took_s`` seconds."""
    if isinstance(error, exceptions.ClientError):
        answer: dict[str, Any] = dict(error.response)
        details, status = answer.get("Error", {}), answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = str(details.get("Code", ""))[:MAX_KIND]
        codes, message = [code, str(status)], str(details.get("Message", "") or error)
        throttling = str(answer.get("Reason", ""))[:MAX_KIND]
        words = throttling or f"{code}: {message[:MAX_WORDS]}"
    else:
        codes = [cls.__name__ for cls in type(error).__mro__]
        words = f"{type(error).__name__}: {text_without_credentials(str(error))[:MAX_WORDS]}"
    failure = next((_BY_CODE[code] for code in codes if code in _BY_CODE), _UNKNOWN)
    return ExecutorError(
        failure.message.format(target=target, words=words),
        failure.kind,
        ran_s=took_s if failure.may_have_run else 0.0,
        refused=failure.refused,
        wrong_settings=failure.wrong_settings,
    )


def from_function(payload: bytes, target: Target, ran_s: float) -> ExecutorError:
    """Convert a response with ``X-Amz-Function-Error`` into an error. Failed calls are billed too."""
    kind, message = _type_and_message(payload)
    failure = _BY_TYPE.get(kind, _RAISED)
    if _OUT_OF_TIME.search(message):
        failure = _TIMED_OUT
    elif kind.startswith("Runtime.") and _KILLED.search(message):
        failure = _CRASH
    if failure is _CRASH and "killed" in message:
        failure = _OUT_OF_MEMORY
    words = failure.message.format(target=target, words=f"{kind}: {message}" if kind else message)
    return ExecutorError(words, failure.kind, ran_s=ran_s)


def _type_and_message(payload: bytes) -> tuple[str, str]:
    try:
        error: Any = json.loads(payload)
    except (ValueError, RecursionError):
        error = None
    kind, words = (
        clean_text(text[:most])
        if isinstance(error, dict) and isinstance(text := error.get(name), str)
        else ""
        for name, most in (("errorType", MAX_KIND), ("errorMessage", MAX_WORDS))
    )
    if kind or words:
        return kind, words
    return "", f"an error in an unknown format: {payload[:MAX_WORDS].decode(errors='replace')!r}"
