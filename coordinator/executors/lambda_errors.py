"""What AWS Lambda's failures mean: of its Invoke API, of the way there, and of the function itself.

Each becomes one of the executors' errors, which names the function, the reason and the remedy. What a
function says of its error comes over a network: it is read with care and cut short.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from botocore import exceptions

from superdl.coordinator.aws_credentials import NO_CREDENTIALS
from superdl.coordinator.executors.base import (
    ConnectionLostError,
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
    ThrottledError,
)
from superdl.super_wire.discretion import text_without_credentials
from superdl.super_wire.request import clean_text

if TYPE_CHECKING:
    from superdl.coordinator.executors.lambda_client import Target

__all__ = ["from_botocore", "from_function"]

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

_CRASHES = frozenset({"Extension.Crash", "Runtime.ExitError", "Runtime.OutOfMemory", "Sandbox.Failure"})
_CACHE_ERRORS = frozenset({"CacheError", "CacheUnreachableError"})
_OUT_OF_TIME = re.compile(r"Task timed out after [\d.]+ seconds")
_KILLED = re.compile(r"signal: \w+|Runtime exited")


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


def from_function(payload: bytes, target: Target, *, memory_mb: int = 0, cache: str = "") -> ExecutorError:
    """What an answer that says ``X-Amz-Function-Error`` tells, as an executor's error.

    ``memory_mb`` is the function's, ``cache`` the address that a warm event named, where these are known.
    """
    kind, words = _told(payload)
    said = f"{kind}: {words}" if kind else words
    if kind == "Sandbox.Timedout" or _OUT_OF_TIME.search(words):
        return FunctionTimedOutError(
            f"{target} ran out of its own time limit ({said}): raise its timeout, or lower request_samples"
        )
    if kind in _CRASHES or (kind.startswith("Runtime.") and _KILLED.search(words)):
        memory = f" of {memory_mb} MB" if memory_mb else ""
        hint = (
            f"; its memory{memory} may be too small"
            if kind == "Runtime.OutOfMemory" or "killed" in words
            else ""
        )
        return FunctionCrashedError(f"{target} crashed ({said}){hint}")
    if kind == "Function.ResponseSizeTooLarge":
        return PayloadTooLargeError(
            f"{target} answered more than Lambda carries ({said}): lower request_samples"
        )
    if kind in {"Runtime.ImportModuleError", "Runtime.HandlerNotFound", "Runtime.UserCodeSyntaxError"}:
        return FunctionRaisedError(
            f"{target} does not start ({said}): build its package for its architecture and Python "
            "(make lambda-zip), with the handler superdl.lambda_prefetch.handler.handler"
        )
    if cache and kind in _CACHE_ERRORS:
        return FunctionRaisedError(
            f"{target} cannot use the cache at {cache} ({said}): see that it is in the cache's VPC, that the "
            "security groups let it in, and its own SUPER_CACHE_* settings"
        )
    return FunctionRaisedError(f"{target} raised {said}")


def _told(payload: bytes) -> tuple[str, str]:
    """Type and words of a function's error, whatever it is that came."""
    try:
        error: Any = json.loads(payload)
    except (ValueError, RecursionError):
        error = None
    if isinstance(error, dict):
        kind, words = error.get("errorType"), error.get("errorMessage")
        if isinstance(kind, str) or isinstance(words, str):
            return (
                clean_text(kind[:_MAX_KIND]) if isinstance(kind, str) else "",
                clean_text(words[:_MAX_WORDS]) if isinstance(words, str) else "",
            )
    return "", f"what is no error of Lambda's: {payload[:_MAX_WORDS].decode(errors='replace')!r}"
