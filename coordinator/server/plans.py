"""The plan in a request to open a job, and orders that are sent in parts before it."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from superdl.coordinator.core import Plan
from superdl.super_wire.draws import NUMBERS_MAX, Draws, unpack_numbers
from superdl.super_wire.errors import ConfigError, PlanError, UnknownJobError

if TYPE_CHECKING:
    from superdl.super_wire import coordinator_pb2 as pb

__all__ = ["Orders", "check_job_id", "check_place"]

_EPOCH_MAX = 2**40
_JOB_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,256}")  # part of a Redis key: ASCII, no braces
_INDEX_BYTES = 8
_KEPT_MAX = 32
_KEPT_BYTES_MAX = 512 * 2**20


class Orders:
    """Orders drawn by users' samplers, as far as they have been received. Thread-safe.

    Beyond 32 orders or 512 MiB, the oldest are dropped, and sent again if needed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], bytearray] = OrderedDict()

    def add(self, part: pb.OrderPart) -> int:
        """Keep a part of an order; return the number of indices received without a gap.

        A part that begins at the first index starts the order over. A part that would leave a gap is not
        kept.

        Raises:
            ConfigError: the part is malformed, or the order is too long.
        """
        indices, key = unpack_numbers(part.indices), (part.job, part.epoch)
        with self._lock:
            order = self._kept.pop(key, bytearray())
            if part.start * _INDEX_BYTES <= len(order):
                order[part.start * _INDEX_BYTES :] = indices
            if len(order) > NUMBERS_MAX * _INDEX_BYTES:
                raise ConfigError(f"the order of an epoch has at most {NUMBERS_MAX:,} indices")
            self._kept[key] = order
            while len(self._kept) > _KEPT_MAX or sum(map(len, self._kept.values())) > _KEPT_BYTES_MAX:
                self._kept.popitem(last=False)
            return len(order) // _INDEX_BYTES

    def plan_of(self, request: pb.OpenJobRequest, size: int) -> Plan:
        """Return a job's plan on a dataset of ``size`` samples. Many draws take a second.

        Raises:
            ConfigError, PlanError: the request describes no valid plan.
            UnknownJobError: the order that was sent before has been dropped.
        """
        draws: Draws | None
        indices, weights = request.indices, request.weights
        if request.order_sent:
            draws = Draws(self._take(request), lengths=unpack_numbers(request.lengths))
        else:
            draws = Draws.unpacked(indices, weights, request.draws, request.repeats, request.lengths)
        return Plan(
            size=size,
            batch_size=request.batch_size,
            replicas=request.replicas,
            seed=request.seed,
            shuffle=request.shuffle,
            drop_last=request.drop_last,
            draws=draws,
            mix=tuple(request.mix),
            member=request.member,
            mix_run=request.mix_run or 1,
            only_epoch=request.epoch if request.lengths else None,
        )

    def _take(self, request: pb.OpenJobRequest) -> bytes:
        with self._lock:
            order = self._kept.pop((request.job, request.epoch), bytearray())
        if len(order) != request.order_sent * _INDEX_BYTES:
            raise UnknownJobError(f"the order of epoch {request.epoch} of job {request.job!r} is not here")
        return bytes(order)


def check_job_id(name: str) -> None:
    """Raise ``ConfigError`` if ``name`` cannot be the id of a job."""
    if not _JOB_ID.fullmatch(name):
        raise ConfigError(
            f"a job's id has 1 to 256 letters, digits or characters of . _ : @ / + = -; not {name[:80]!r}"
        )


def check_place(plan: Plan, epoch: int, position: int) -> None:
    """Raise ``PlanError`` for no place of a plan, ``UnknownJobError`` for an unknown order."""
    if epoch > _EPOCH_MAX:
        raise PlanError(f"epoch is from 0 to {_EPOCH_MAX}; not {epoch}")
    if not plan.covers(epoch):
        raise UnknownJobError(f"the order of epoch {plan.only_epoch} is here, and not that of {epoch}")
    if position > plan.batches_per_epoch:
        raise PlanError(f"an epoch has {plan.batches_per_epoch} batches; there is no position {position}")
