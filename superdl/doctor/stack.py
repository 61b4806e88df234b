"""Reads where a deployed stack's parts are, from its CloudFormation outputs.

The names of the outputs are those of ``infra/template.yaml``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superdl.doctor.aws import aws_client
from superdl.doctor.running import within
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import without_credentials

__all__ = ["Stack", "read_stack"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}|arn:aws[a-z-]*:cloudformation:.+")
_ASKING_S = 30.0
_HOWTO = "write what aws cloudformation describe-stacks --stack-name NAME prints into a file and name that"


@dataclass(frozen=True, slots=True)
class Stack:
    """What the outputs name; empty where they do not."""

    coordinator: str = ""
    cache: str = ""
    function: str = ""
    region: str = ""
    bucket: str = ""
    prefix: str = ""

    @property
    def readable(self) -> str:
        """The URL below which functions may read."""
        return f"s3://{self.bucket}/{self.prefix}" if self.bucket else ""


def read_stack(named: str) -> Stack:
    """The outputs of a stack.

    Args:
        named: a JSON file, as ``aws cloudformation describe-stacks`` prints it or a mapping of names; else
            the name of a stack, whose outputs are asked for.

    Raises:
        ConfigError: they cannot be had.
    """
    file = Path(named)
    if file.suffix == ".json" or file.exists() or not _NAME.fullmatch(named):
        return _read_file(named)
    return _ask(named)


def _read_file(file: str) -> Stack:
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        msg = f"the stack's outputs in {without_credentials(file)} cannot be read: {why}"
        raise ConfigError(msg) from error
    return _stack_of(content, file)


def _ask(name: str) -> Stack:
    content = within(_ASKING_S, lambda: _described(name))
    if content is None or isinstance(content, BaseException):
        why = str(content) if content is not None else f"no answer within {_ASKING_S:g} s"
        msg = (
            f"the outputs of the stack {name} cannot be asked for: {why}: see the region "
            f"(AWS_DEFAULT_REGION) and that this identity may do cloudformation:DescribeStacks; or {_HOWTO}"
        )
        raise ConfigError(msg)
    return _stack_of(content, f"the stack {name}")


def _described(name: str) -> dict[str, Any]:
    client = aws_client("cloudformation")
    try:
        told: dict[str, Any] = client.describe_stacks(StackName=name)
    finally:
        client.close()
    return told


def _stack_of(content: Any, origin: str) -> Stack:
    outputs = _outputs(content)
    if outputs is None:
        msg = f"{origin} holds no outputs of a stack: {_HOWTO}"
        raise ConfigError(msg)
    return Stack(
        coordinator=outputs.get("CoordinatorAddress", ""),
        cache=outputs.get("CacheAddress", ""),
        function=outputs.get("FunctionArn", ""),
        region=outputs.get("Region", ""),
        bucket=outputs.get("Bucket", ""),
        prefix=outputs.get("Prefix", ""),
    )


def _outputs(content: Any) -> dict[str, str] | None:
    if not isinstance(content, dict):
        return None
    if "Stacks" not in content:
        return content if content and all(isinstance(value, str) for value in content.values()) else None
    try:
        listed = content["Stacks"][0]["Outputs"]
        return {str(one["OutputKey"]): str(one["OutputValue"]) for one in listed}
    except (LookupError, TypeError):
        return None
