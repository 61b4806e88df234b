"""One function on AWS Lambda, invoked by boto3: a blocking call, an answer or an executor's error.

It retries nothing: the core does, and it must see throttling to adapt to it. Which thread calls, and what
the answers mean, is :mod:`superdl.coordinator.executors.aws_lambda`'s.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
from botocore import exceptions
from botocore.config import Config

from superdl.coordinator.executors.base import PayloadTooLargeError
from superdl.coordinator.executors.lambda_errors import from_botocore
from superdl.super_wire.discretion import text_without_credentials
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_REQUEST_BYTES", "LambdaClient", "Reply", "Target"]

MAX_REQUEST_BYTES = {"RequestResponse": 6 * 2**20, "Event": 2**20}
"""What Lambda takes, by invocation type."""

_CONNECT_TIMEOUT_S = 5
_NAME = re.compile(
    r"(?:arn:aws[a-zA-Z-]*:lambda:(?P<region>[a-z0-9-]+):)?(?:\d{12}:)?(?:function:)?"
    r"[a-zA-Z0-9_.-]+(?::(?:\$LATEST(?:\.PUBLISHED)?|[a-zA-Z0-9_-]+))?"
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
