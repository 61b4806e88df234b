"""One function on AWS Lambda, invoked by boto3: a blocking call that returns an answer or raises."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
from botocore import exceptions
from botocore.config import Config

from superdl.coordinator.executors.base import (
    MAX_KIND,
    MAX_WORDS,
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

__all__ = ["LambdaClient", "Reply", "Target"]

# Lambda's own limit.
_MAX_REQUEST_BYTES = 6 * 2**20

_CONNECT_TIMEOUT_S = 5
_NAME = re.compile(
    r"(?:arn:aws[a-zA-Z-]*:lambda:(?P<region>[a-z0-9-]+):)?(?:\d{12}:)?(?:function:)?"
    r"[a-zA-Z0-9_.-]+(?::(?:\$LATEST(?:\.PUBLISHED)?|[a-zA-Z0-9_-]+))?"
)

_NO_CREDENTIALS = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.ProfileNotFound,
    exceptions.TokenRetrievalError,
    exceptions.SSOError,
)
_NEVER_REACHED = (
    exceptions.ConnectTimeoutError,
    exceptions.EndpointConnectionError,
    exceptions.ProxyConnectionError,
    exceptions.SSLError,
)


@dataclass(frozen=True, slots=True)
class _Refusal:
    codes: str
    says: str
    kind: type[ExecutorError] = ExecutorError
    refused: bool = False
    wrong_settings: bool = False


_REFUSALS = (
    _Refusal(
        "429 TooManyRequestsException EC2ThrottledException RequestLimitExceeded Throttling "
        "ThrottlingException",
        "{target} is throttled ({words}): lower lambda_concurrency, raise the function's reserved "
        "concurrency where it has one, or ask AWS for a higher quota in this region",
        ThrottledError,
    ),
    _Refusal(
        "413 RequestTooLargeException SerializedRequestEntityTooLargeException",
        "{target} takes no request this large ({words}): lower request_samples",
        PayloadTooLargeError,
        refused=True,
    ),
    _Refusal(
        "InvalidRequestContentException UnsupportedMediaTypeException",
        "{target} was not invoked, the request is refused ({words})",
        FunctionRaisedError,
        refused=True,
    ),
    _Refusal(
        "ResourceNotFoundException",
        "{target} does not exist ({words}): deploy it, or correct lambda_function and lambda_region "
        "(SUPER_LAMBDA_FUNCTION, SUPER_LAMBDA_REGION)",
        wrong_settings=True,
    ),
    _Refusal(
        "AccessDenied AccessDeniedException",
        "the coordinator may not invoke {target} ({words}): grant its credentials lambda:InvokeFunction on "
        "this function",
    ),
    _Refusal(
        "ExpiredToken ExpiredTokenException IncompleteSignature IncompleteSignatureException "
        "InvalidClientTokenId InvalidSignatureException MissingAuthenticationToken "
        "MissingAuthenticationTokenException SignatureDoesNotMatch UnrecognizedClientException",
        "{target} cannot be invoked, AWS does not accept the coordinator's credentials ({words}): renew "
        "them, and see that lambda_region is the function's and that this machine's clock is right",
    ),
    _Refusal(
        "CodeArtifactUserPendingException ENINotReadyException ResourceConflictException "
        "ResourceNotReadyException SnapStartNotReadyException",
        "{target} is not ready yet ({words}): wait until its state is Active",
    ),
)


@dataclass(frozen=True, slots=True)
class Target:
    """The function's address; as text, ``the function super-prefetch (us-east-1)``."""

    function: str
    region: str = ""
    endpoint_url: str = ""

    def __str__(self) -> str:
        place = text_without_credentials(self.endpoint_url) or self.region
        return f"the function {self.function}{f' ({place})' if place else ''}"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the Invoke API; ``function_error`` is empty unless the function failed."""

    payload: bytes
    function_error: str = ""


class LambdaClient:
    """A client for ``connections`` threads at once; ``read_timeout_s`` is longer
    than a function may run.

    ``ConfigError``: there is no region (in ``target``, its ARN or AWS's own
    settings), or a name, region or endpoint is invalid.
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
            parameter_validation=False,  # requests are made only here, checks take time
            disable_request_compression=True,
        )
        self.target = Target(target.function, region, target.endpoint_url)
        try:
            self._client: Any = session.client(
                "lambda", config=config, region_name=region, endpoint_url=target.endpoint_url or None
            )
        except (ValueError, exceptions.InvalidRegionError) as error:
            raise ConfigError(
                f"{self.target} has no address: {text_without_credentials(str(error))}; lambda_endpoint_url "
                "is a URL such as http://127.0.0.1:9001, lambda_region a region such as us-east-1"
            ) from error
        except exceptions.BotoCoreError as error:
            raise from_botocore(error, self.target) from error

    def invoke(self, payload: bytes) -> Reply:
        """Invoke the function, and wait for its answer.

        Raises any :class:`ExecutorError`; of the function's own errors, see
        :attr:`Reply.function_error`.
        """
        if len(payload) > _MAX_REQUEST_BYTES:
            error = PayloadTooLargeError(
                f"a request of {len(payload):,} bytes is more than Lambda takes ({_MAX_REQUEST_BYTES:,}): "
                "lower request_samples"
            )
            error.refused = True
            raise error
        arguments = {"FunctionName": self.target.function, "Payload": payload}
        answer = self._mapped(lambda: self._client.invoke(**arguments))
        # Reading the body can fail like the call itself.
        return Reply(self._mapped(answer["Payload"].read), str(answer.get("FunctionError", "")))

    def close(self) -> None:
        """Close the idle connections."""
        self._client.close()

    def _mapped(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # its parser can raise anything
            raise from_botocore(error, self.target) from error


def _session_and_region(target: Target) -> tuple[Any, str]:
    named = _NAME.fullmatch(target.function)
    if named is None:
        raise ConfigError(
            f"lambda_function is a function's name, ARN or name:alias; not {target.function[:200]!r}"
        )
    try:
        # A session of its own: boto3's default session is not thread-safe.
        session = boto3.session.Session()
        own = session.region_name
    except exceptions.BotoCoreError as error:
        raise from_botocore(error, target) from error
    in_arn = named["region"] or ""
    if in_arn and target.region and in_arn != target.region:
        raise ConfigError(
            f"lambda_function is in the region {in_arn} and lambda_region says {target.region}: correct one"
        )
    region = target.region or in_arn or own or os.environ.get("AWS_REGION", "")  # Fargate sets only this
    if not region:
        raise ConfigError(
            f"{target} is in no region: set lambda_region (SUPER_LAMBDA_REGION) or AWS_REGION, or name the "
            "function by its ARN"
        )
    return session, region


def from_botocore(error: Exception, target: Target) -> ExecutorError:
    """Turn botocore's error for an invocation into an executor's error."""
    if isinstance(error, exceptions.ClientError):
        return _from_answer(dict(error.response), str(error), target)
    if isinstance(error, exceptions.ReadTimeoutError):
        return FunctionTimedOutError(f"{target} did not answer in time")
    words = text_without_credentials(str(error))[:MAX_WORDS]
    if isinstance(error, _NO_CREDENTIALS):
        failed = ExecutorError(
            f"{target} cannot be invoked: the coordinator has no usable AWS credentials ({words}): set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE where it runs, or give its machine a "
            "role"
        )
        failed.wrong_settings = True
        return failed
    if isinstance(error, _NEVER_REACHED):
        return ExecutorError(
            f"{target} cannot be reached ({words}): check lambda_region, lambda_endpoint_url, the network; a "
            "VPC without NAT needs an interface endpoint for Lambda"
        )
    # The request may have arrived: unlike the errors above, these say nothing about it.
    if isinstance(error, (exceptions.ConnectionError, exceptions.HTTPClientError)):
        return ConnectionLostError(f"the connection to {target} broke before it had answered: {words}")
    return ExecutorError(f"{target} could not be invoked: {type(error).__name__}: {words}")


def _from_answer(answer: dict[str, Any], text: str, target: Target) -> ExecutorError:
    details, status = answer.get("Error", {}), answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(details.get("Code", ""))[:MAX_KIND]
    words = str(answer.get("Reason", ""))[:MAX_KIND]  # of throttling
    words = words or f"{code}: {str(details.get('Message', '') or text)[:MAX_WORDS]}"
    for refusal in _REFUSALS:
        if {code, str(status)} & set(refusal.codes.split()):
            failed = refusal.kind(refusal.says.format(target=target, words=words))
            failed.refused, failed.wrong_settings = refusal.refused, refusal.wrong_settings
            return failed
    return ExecutorError(f"{target} could not be invoked ({words})")
