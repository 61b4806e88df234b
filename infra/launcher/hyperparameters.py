"""Hyper-parameters of a SageMaker job as words of the training script's command line: ``--name value``.

The training toolkit gives them ready (``SM_USER_ARGS``), or as a mapping (``SM_HPS``); without it they are in
``hyperparameters.json``. They come sorted by name, one of a single letter as ``-n``, as the toolkit has it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["FILE", "words_of_hyperparameters"]

FILE = "hyperparameters.json"

_NOT_THE_SCRIPTS = ("sagemaker_", "_tuning_objective_metric")


def words_of_hyperparameters(environment: Mapping[str, str], directory: Path) -> list[str]:
    """The words; none where no hyper-parameters are told of.

    Raises:
        ConfigError: what is told is not of the form that SageMaker gives it.
    """
    if environment.get("SM_USER_ARGS"):
        words = _parsed(environment["SM_USER_ARGS"], "SM_USER_ARGS", list)
        return [str(word) for word in words]
    if environment.get("SM_HPS"):
        return _words(_parsed(environment["SM_HPS"], "SM_HPS", dict))
    file = directory / FILE
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{file} cannot be read: {error}"
        raise ConfigError(msg) from error
    return _words(_parsed(text, str(file), dict))


def _parsed(text: str, origin: str, kind: type) -> Any:
    form = '["--epochs", "3"]' if kind is list else '{"epochs": "3"}'
    try:
        value = json.loads(text)
    except ValueError as error:
        msg = f"{origin} is no JSON: {error}"
        raise ConfigError(msg) from error
    if not isinstance(value, kind):
        msg = f"{origin} is of the form {form}; not {text[:80]!r}"
        raise ConfigError(msg)
    return value


def _words(parameters: Mapping[str, Any]) -> list[str]:
    words = []
    for name in sorted(parameters):
        if not name.startswith(_NOT_THE_SCRIPTS):
            words += [f"--{name}" if len(name) > 1 else f"-{name}", _text(parameters[name])]
    return words


def _text(value: Any) -> str:
    """A value as a script reads it. SageMaker's SDK quotes texts once more, and writes truths as JSON does;
    both are undone, as the toolkit does. Numbers stay as they were written.
    """
    if isinstance(value, str) and (value in {"true", "false"} or value.startswith('"')):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    if isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "" if value is None else str(value)
