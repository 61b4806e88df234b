"""What each field of a request may hold: one table for all RPCs, asked before any of them is carried out.

What a field may hold beside what else is known (a rank of a job's plan, a position of its epochs) is
:mod:`superdl.coordinator.server.service`'s. A field without a rule is a failure at import, so that none is
forgotten.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import ConfigError, PlanError
from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

__all__ = ["EPOCH_MAX", "check_fields"]

EPOCH_MAX = 2**40

_MAX_TEXT = 65_536
_MAX_BATCH_IDS = 4096
_MAX_JOBS_TOLD = 1024
_JOB_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,256}")  # part of a Redis key: ASCII, no braces, no bell's mark


def _any(_value: Any) -> None:
    """Its type bounds it, or what it is used for does."""


def _text(value: str) -> None:
    if len(value) > _MAX_TEXT:
        raise ConfigError(f"source, recipe, key list and run id have at most {_MAX_TEXT} characters each")


def _job(value: str) -> None:
    if not _JOB_ID.fullmatch(value):
        raise ConfigError(
            f"a job's id has 1 to 256 letters, digits or characters of . _ : @ / + = -; not {value[:80]!r}"
        )


def _jobs(values: list[str]) -> None:
    if len(values) > _MAX_JOBS_TOLD:
        raise ConfigError(
            f"one call asks for at most {_MAX_JOBS_TOLD} jobs, or by naming none for all of them"
        )
    for value in values:
        _job(value)


def _dataset_id(value: bytes) -> None:
    if len(value) != ID_BYTES:
        raise ConfigError(f"a dataset's id has {ID_BYTES} bytes; not {len(value)}")


def _batch_ids(values: list[bytes]) -> None:
    if len(values) > _MAX_BATCH_IDS:
        raise ConfigError(f"one call asks for at most {_MAX_BATCH_IDS} batches; not {len(values)}")
    if any(len(value) != ID_BYTES for value in values):
        raise ConfigError(f"a batch id has {ID_BYTES} bytes")


def _epoch(value: int) -> None:
    if value > EPOCH_MAX:
        raise PlanError(f"epoch is from 0 to {EPOCH_MAX}; not {value}")


_RULES: dict[str, Callable[[Any], None]] = {
    **dict.fromkeys(("source", "recipe", "key_list", "run_id"), _text),
    "job": _job,
    "jobs": _jobs,
    "dataset_id": _dataset_id,
    "batch_ids": _batch_ids,
    "epoch": _epoch,
    # The plan bounds what opens a job, and the job's plan what is asked of it.
    **dict.fromkeys(("batch_size", "replicas", "seed", "rank", "position"), _any),
    **dict.fromkeys(("protocol_version", "listed", "wait_s", "count", "yielded"), _any),
    **dict.fromkeys(("shuffle", "drop_last", "with_keys", "with_stalls"), _any),
}
_METHODS = pb.DESCRIPTOR.services_by_name["Coordinator"].methods
_FIELDS = {
    method.input_type.full_name: [(field.name, _RULES[field.name]) for field in method.input_type.fields]
    for method in _METHODS
}


def check_fields(request: Message) -> None:
    """Refuse a request of which a field holds what none may.

    Raises:
        SuperError: which field, and what it may hold.
    """
    for name, rule in _FIELDS[request.DESCRIPTOR.full_name]:
        rule(getattr(request, name))
