"""Reads where a deployed stack's parts are, from its CloudFormation outputs.

The names of the outputs are those of ``infra/template.yaml``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from super_wire.errors import ConfigError

__all__ = ["Stack", "read_stack"]


@dataclass(frozen=True, slots=True)
class Stack:
    """Addresses that the outputs name; empty where they do not."""

    coordinator: str = ""
    cache: str = ""


def read_stack(file: str) -> Stack:
    """The outputs in a JSON file: what ``aws cloudformation describe-stacks`` prints, or a mapping of names.

    Raises:
        ConfigError: the file cannot be read or has no outputs.
    """
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"the stack's outputs in {file} cannot be read: {error}"
        raise ConfigError(msg) from error
    outputs = _outputs(content)
    if outputs is None:
        msg = (
            f"{file} holds no outputs of a stack: write what aws cloudformation describe-stacks "
            "--stack-name NAME prints into it"
        )
        raise ConfigError(msg)
    return Stack(coordinator=outputs.get("CoordinatorAddress", ""), cache=outputs.get("CacheAddress", ""))


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
