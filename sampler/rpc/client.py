"""The sampler's client for the coordinator: deadlines, bounded retries, typed errors."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from superdl.sampler.rpc.connection import CallCutError, CallFailedError, Connection, connection_to
from superdl.sampler.rpc.distrust import diagnose_distrust
from superdl.super_wire.credentials import CoordinatorCredentials
from superdl.super_wire.display import shown, shown_lines
from superdl.super_wire.errors import (
    CacheUnreachableError,
    CoordinatorError,
    CoordinatorTrustError,
    CoordinatorUnreachableError,
    ProtocolMismatchError,
    SourceError,
    SuperError,
    UnknownJobError,
    error_from_name,
)
from superdl.super_wire.protocol import PROTOCOL_VERSION, host_and_port
from superdl.super_wire.user_text import seconds_from

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from superdl.super_wire.batch_ref import Bindable

_LOG = logging.getLogger(__name__)

# Unreachable, timed out, shut down during the call, or overloaded. gRPC maps a proxy's HTTP error, a
# broken stream and a broken message to UNKNOWN and INTERNAL. The coordinator's own errors carry a name.
_TRANSIENT = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "UNKNOWN", "INTERNAL"}
)
# Details of permanent errors with these codes: a message's size, and an exception.
_PERMANENT = ("message larger than max", "Unexpected <class ")
# The connection may be dead or out of sync, so the next attempt opens a new one.
_RECONNECT = frozenset({"DEADLINE_EXCEEDED", "UNKNOWN", "INTERNAL"})
PROBING_S = 3.0  # per call, for all probes of an unreachable peer
_LEAST_PROBING_S = 0.5  # even if the call's own time is up
_LONG_POLL_S = 10.0
_LOG_FIRST_S, _LOG_EVERY_S = 1.0, 10.0  # for an unanswered call
_MAX_CUTS = 1000  # each due to a fork of this process, or to a holder that left
# Unlike the global generator, it has no state that equally seeded or forked ranks would share.
_JITTER = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits for retrying a call: at most ``attempts`` attempts, and ``total_s`` seconds in total."""

    attempts: int
    total_s: float
    deadline_s: float = 10.0
    backoff_s: float = 0.1
    backoff_max_s: float = 5.0

    def until(self, end_s: float) -> Patience:
        """Return these limits, reduced to the time left until the monotonic time ``end_s``."""
        return replace(self, total_s=min(self.total_s, max(0.0, end_s - time.monotonic())))

    def pause_s(self, attempt: int) -> float:
        """Return the pause in seconds after the ``attempt``-th failure, with jitter."""
        ceiling = min(self.backoff_max_s, self.backoff_s * 2.0 ** min(attempt, 30))
        return ceiling * _JITTER.uniform(0.5, 1.0)


class CallStoppedError(Exception):
    """The caller cancelled the call."""


# For command-line queries, which should report a wrong address soon.
FIRST_CONTACT = Patience(attempts=12, total_s=15.0)


def startup_patience() -> Patience:
    """Return the limits for a new sampler, which may be created before the coordinator starts."""
    return Patience(attempts=10_000, total_s=seconds_from(os.environ, "SUPER_CONNECT_TIMEOUT_S", 60.0))


# Mid-epoch: a coordinator may restart, or the network may fail for a while.
RUNNING = Patience(attempts=60, total_s=120.0)

# Time without progress after which a listing is abandoned.
LISTING_SILENCE_S = 120.0


class Client:
    """A client for the coordinator at one address.

    Args:
        address: as returned by :func:`superdl.sampler.rpc.connection.checked_address`.
        explain: called when the coordinator does not respond. If it returns an error, that is raised instead.
        alone: whether the coordinator ends with this process, which makes closing jobs unnecessary.
        credentials: defaults to those in the environment.

    Raises:
        ConfigError: the environment's credentials are invalid, or a required token is missing.
    """

    def __init__(
        self,
        address: str,
        explain: Callable[[], SuperError | None] = lambda: None,
        *,
        alone: bool = False,
        credentials: CoordinatorCredentials | None = None,
    ) -> None:
        self.address = address
        self.alone = alone
        self._explain = explain
        self._credentials = credentials or CoordinatorCredentials.from_environment(os.environ)
        self._credentials.check_suffices(host_and_port(address)[0])
        self._was_answered = False
        self._probing_left_s = PROBING_S

    def hold(self) -> AbstractContextManager[None]:
        """Keep the channel open between calls."""
        return self._connection().hold()

    def cut(self) -> None:
        """Cancel all calls in progress. Callers that still need an answer retry them."""
        self._connection().cut()

    def call(
        self,
        method: str,
        request: Any,
        patience: Patience,
        *,
        wait_s: float = 0.0,
        stopped: threading.Event | None = None,
    ) -> Any:
        """Call a method, retrying until it succeeds. A long poll adds its ``wait_s`` to the deadline.

        Raises:
            CallStoppedError: ``stopped`` was set before an answer arrived.
            CoordinatorUnreachableError: no answer arrived. The message has the address, attempts and time.
            ProtocolMismatchError: the peer speaks a different version.
            SuperError: the coordinator reported an error, which is raised as its own type.
        """
        stopped = stopped or threading.Event()
        begin_s = time.monotonic()
        self._probing_left_s = PROBING_S
        last: CallFailedError | None = None
        attempt = cuts = 0
        warn_s = begin_s + _LOG_FIRST_S
        # Every call is idempotent, so it can be repeated.
        while attempt < patience.attempts and not stopped.is_set():
            left_s = patience.total_s - (time.monotonic() - begin_s)
            if attempt and left_s <= 0:
                break
            deadline_s = min(patience.deadline_s, max(left_s, 0.1)) + wait_s
            try:
                answer = self._connection().call(method, request, deadline_s)
            except CallCutError:
                cuts += 1
                attempt += cuts > _MAX_CUTS
                continue
            except CallFailedError as failure:
                last = failure
                self._raise_if_final(failure, method, left_s)
            else:
                self._was_answered = True
                return answer
            attempt += 1
            left_s = patience.total_s - (time.monotonic() - begin_s)
            if time.monotonic() >= warn_s:
                _LOG.warning(
                    "waiting up to %.0f s more for the coordinator at %s: %s", left_s, self.address, last
                )
                warn_s = time.monotonic() + _LOG_EVERY_S
            stopped.wait(min(patience.pause_s(attempt), max(left_s, 0.0)))
        if stopped.is_set():
            raise CallStoppedError
        if last is not None and last.error_name:
            raise error_from_name(last.error_name, last.details)
        error = self._diagnose_distrust(0.0)
        raise error or self._unreachable_error(last, attempt, time.monotonic() - begin_s) from last

    def _raise_if_final(self, failure: CallFailedError, method: str, left_s: float) -> None:
        """Raise the error unless a retry may help."""
        if failure.error_name:
            self._was_answered = True
            # The coordinator keeps trying to reach its cache, so keep retrying.
            if failure.error_name == CacheUnreachableError.__name__:
                return
            raise error_from_name(failure.error_name, failure.details) from None
        if failure.code not in _TRANSIENT or any(words in failure.details for words in _PERMANENT):
            raise self._permanent_error(failure, method) from failure
        if failure.code in _RECONNECT:
            self.cut()
        explained = self._explain()
        if explained is None and failure.code == "UNAVAILABLE" and not self._was_answered:
            explained = self._diagnose_distrust(left_s)
        if explained is not None:
            raise explained from failure

    def _diagnose_distrust(self, left_s: float) -> SuperError | None:
        """Return the trust error behind a missing answer, if any. All probes of a call share a time limit."""
        begin_s = time.monotonic()
        timeout_s = min(self._probing_left_s, max(left_s, _LEAST_PROBING_S))
        error = diagnose_distrust(self.address, self._credentials, timeout_s) if timeout_s > 0 else None
        self._probing_left_s -= time.monotonic() - begin_s
        return error

    def register(
        self,
        dataset: Bindable,
        run: str,
        patience: Patience | None = None,
        end_s: float = math.inf,
        *,
        renew: bool = False,
        begins: bool = False,
        silence_s: float = LISTING_SILENCE_S,
        listed: Callable[[int], object] | None = None,
        stopped: threading.Event | None = None,
    ) -> tuple[Any, float]:
        """Register a dataset and wait until it is listed, which may take minutes.

        Gives up after ``silence_s`` seconds without progress, or at the monotonic time ``end_s``, which
        progress extends. ``patience`` limits the retries of each call. With ``renew``, this run's listing is
        repeated if that is cheap. With ``begins``, it is repeated if the run has ended. ``listed`` is called
        with each new number of samples. Returns the ``Dataset`` message and the extended ``end_s``.

        Raises:
            SourceError: the source cannot be listed, or its listing makes no progress.
            CoordinatorError: the coordinator does not respond, or rejects the call.
        """
        from superdl.super_wire import coordinator_pb2 as pb

        request = pb.RegisterDatasetRequest(
            protocol_version=PROTOCOL_VERSION,
            source=dataset.source,
            recipe=dataset.recipe.json,
            key_list=dataset.key_list or "",
            run_id=run,
            renew=renew,
            begins=begins,
            classes=dataset.given_classes,
            **dataset.naming._asdict(),
        )
        patience = patience or startup_patience()
        info = self.call("RegisterDataset", request, patience.until(end_s), stopped=stopped)
        if info.protocol_version != PROTOCOL_VERSION:
            raise ProtocolMismatchError(
                f"this side speaks protocol version {PROTOCOL_VERSION}, but the coordinator at "
                f"{self.address} speaks version {info.protocol_version}. Install the same SUPER version on "
                "both sides"
            )
        progress_s = time.monotonic()
        while not info.ready:
            so_far, polled_s = info.listed, time.monotonic()
            if polled_s - progress_s > silence_s or polled_s >= end_s:
                raise SourceError(
                    f"the listing of {dataset.source} is at {so_far} samples and has made no progress for "
                    f"{polled_s - progress_s:.0f} s. See the log of the coordinator at {self.address}"
                )
            poll_s = min(_LONG_POLL_S, silence_s, end_s - polled_s)
            poll = pb.GetDatasetRequest(dataset_id=info.dataset_id, listed=so_far, wait_s=poll_s)
            retries = patience.until(end_s)
            try:
                info = self.call("GetDataset", poll, retries, wait_s=poll_s, stopped=stopped)
            except UnknownJobError:  # the coordinator restarted; registering is idempotent
                info = self.call("RegisterDataset", request, retries, stopped=stopped)
            for warning in () if info.ready else info.warnings:
                _LOG.warning("%s", shown_lines(warning))
            if info.listed > so_far or info.packing:
                progress_s = time.monotonic()
                end_s += progress_s - polled_s
            if info.listed > so_far and listed is not None:
                listed(info.listed)
            elif info.listed > so_far:
                _LOG.info("listing %s: %d samples so far", shown(dataset.source), info.listed)
        if dataset.given_classes not in {(), tuple(info.classes)}:  # an older version ignores them
            raise ProtocolMismatchError(
                f"the coordinator at {self.address} does not support classes=. Install the same SUPER "
                "version on both sides"
            )
        return info, end_s

    def _connection(self) -> Connection:
        return connection_to(self.address, self._credentials)

    def _permanent_error(self, failure: CallFailedError, method: str) -> SuperError:
        if failure.code in {"UNAUTHENTICATED", "PERMISSION_DENIED"}:  # from a proxy
            return CoordinatorTrustError(f"the server at {self.address} rejects this client: {failure}")
        if failure.code == "UNIMPLEMENTED":
            return ProtocolMismatchError(
                f"this sampler speaks protocol version {PROTOCOL_VERSION}, but the server at {self.address} "
                f"has no method super.v1.Coordinator/{method} ({failure.details}). It has another version or "
                "is not a coordinator. Install the same SUPER version on both sides, and check the address"
            )
        return CoordinatorError(f"the {method} call to the coordinator at {self.address} failed: {failure}")

    def _unreachable_error(self, last: CallFailedError | None, attempts: int, waited_s: float) -> SuperError:
        reason = last if last is not None else "the connection was closed during each attempt"
        return CoordinatorUnreachableError(
            f"no coordinator answered at {self.address} in {attempts} attempts over {waited_s:.1f} s "
            f"({reason}). Check that it is running (superdl coordinator --listen ...) and that coordinator= "
            "or SUPER_COORDINATOR is its address. SUPER_CONNECT_TIMEOUT_S sets how long jobs wait for it to "
            "start"
        )
