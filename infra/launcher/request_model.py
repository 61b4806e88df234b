"""Whether a request is within what AWS's own model of the API allows: lengths, numbers and patterns.

botocore checks types and names alone. Lists of values (types of machines) are left to AWS, which adds to
them faster than botocore's releases.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from botocore.loaders import Loader
from botocore.model import ServiceModel

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
__all__ = ["check_request"]

_SHOWN = 60  # characters of a value that does not fit


def check_request(request: Mapping[str, Any]) -> None:
    """See that ``CreateTrainingJob`` may be asked for this.

    Raises:
        ConfigError: all that AWS would refuse.
    """
    shape = _model().operation_model("CreateTrainingJob").input_shape
    faults = list(_faults(shape, request, ""))
    if faults:
        msg = f"AWS takes no such job: {'; '.join(faults)}"
        raise ConfigError(msg)


@functools.cache
def _model() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")


def _faults(shape: Any, value: Any, place: str) -> Iterator[str]:
    kind = shape.type_name
    if kind == "structure":
        for name, member in value.items():
            yield from _faults(shape.members[name], member, f"{place}.{name}".lstrip("."))
    elif kind == "list":
        yield from _bounds(shape, len(value), f"{place} has {len(value)} entries")
        for number, member in enumerate(value):
            yield from _faults(shape.member, member, f"{place}[{number}]")
    elif kind == "map":
        yield from _bounds(shape, len(value), f"{place} has {len(value)} entries")
        for name, member in value.items():
            yield from _faults(shape.key, name, f"a name in {place}")
            yield from _faults(shape.value, member, f"{place}.{name[:_SHOWN]}")
    elif kind in {"integer", "long"}:
        yield from _bounds(shape, value, f"{place} is {value}")
    elif kind == "string":
        yield from _bounds(shape, len(value), f"{place} has {len(value)} characters")
        pattern = shape.metadata.get("pattern", "")
        if pattern and r"\p{" not in pattern and not re.fullmatch(pattern, value):  # re knows no \p
            yield f"{place} is {value[:_SHOWN]!r} and is to match {pattern}"


def _bounds(shape: Any, number: int, told: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if least is not None and number < least:
        yield f"{told}, at least {least}"
    if most is not None and number > most:
        yield f"{told}, at most {most}"
