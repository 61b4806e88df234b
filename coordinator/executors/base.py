"""The executor interface, helpers for executor settings, and the error that a failed invocation raises.

Even after a failed invocation, some samples may be in the cache. Failures of individual samples are
reported in the result.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from superdl.coordinator.core import FailureKind, Prices
from superdl.super_wire.display import shown
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.executors import EXECUTORS, RunsOn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from superdl.coordinator.core import ExecutorResized
    from superdl.super_wire import coordinator_pb2 as pb
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult
    from superdl.super_wire.worker_process import WorkerProcess

MAX_KIND, MAX_WORDS = 80, 600  # characters shown of a failure's kind and message
_SCAN = 4
DIGEST = re.compile(r"[0-9a-f]{32}")  # a decoder's fingerprint
SHIPPED_PRICES = Path(__file__).with_name("prices.toml")


class ExecutorError(SuperError):
    """A request failed, or functions could not be started.

    Args:
        kind: ``CRASHED`` means that the request may or may not have been carried out, ``RAISED`` that the
            message contains the function's error or that the request or its result is too large, and
            ``THROTTLED`` that no function was free in time.
        ran_s: billed run time in seconds. This is an upper bound if a connection broke, and 0 if no
            function ran or the time is unknown.
        refused: no function was invoked, so nothing is billed.
        wrong_settings: only a change of settings can help.
    """

    def __init__(
        self,
        message: str,
        kind: FailureKind = FailureKind.UNAVAILABLE,
        *,
        ran_s: float = 0.0,
        refused: bool = False,
        wrong_settings: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind, self.ran_s, self.refused = kind, ran_s, refused
        self.wrong_settings = wrong_settings


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """Values that an executor needs in addition to its own settings."""

    cache: str
    function: str = "superdl.lambda_prefetch.handler:handler"  # import path, module:attribute
    request_timeout_s: float = 60.0
    # Environment variables of functions on this machine.
    environment: Mapping[str, str] = field(default_factory=dict)
    # Directory for files of functions on this machine; created when needed.
    scratch: Path | None = None
    # A worker process that is already loading its modules, for a local executor.
    worker: WorkerProcess | None = None
    # The workers that call in (connected_workers.Workers).
    workers: Any = None
    # Directory of the coordinator's unix socket; empty if it listens on a port.
    sockets: str = ""


class Executor(Protocol):
    """A way to run functions, used from one event loop. Raises ``ConfigError`` if a setting is invalid."""

    # Name in the registry: ``local``, ``workers``, ``lambda``.
    name: ClassVar[str]

    # Functions run on other machines, which cannot see this machine's files.
    remote: bool

    # AWS region of the functions; empty if irrelevant.
    region: str

    # Number of requests accepted at once. It may change; the manager adds the executor's number.
    scaling: ExecutorResized

    # Fingerprint of the functions' decoder; empty before start().
    fingerprint: str

    # Reason the executor accepts no requests; empty while it does.
    absence: str = ""

    # If false, the executor only restores and saves.
    decodes: bool = True

    # Settings shown to clients, as fields of the protocol's message ``Coordinating``.
    public_settings: ClassVar[tuple[str, ...]] = ()

    # Settings that limit the executor to one function, for a trial.
    trial_settings: ClassVar[Mapping[str, Any]] = {}

    # Calls are signed for AWS, which needs credentials and a correct clock.
    uses_aws: ClassVar[bool] = False

    # Statistics of connected workers.
    connected: Sequence[pb.WorkerStats] = ()

    # Number of crashes, timeouts and restarts of slots.
    slot_failures: Mapping[str, int] = {}

    # Functions cache shards in the context's scratch directory; set by start().
    keeps_shards: bool = False

    # Advice if functions cannot see a directory.
    files_remedy: ClassVar[str] = "put the images into a bucket and use s3://bucket/prefix as the source"

    def __init__(self, settings: Any, context: ExecutorContext) -> None: ...

    async def start(self) -> None:
        """Start functions within a bounded time. Raises :class:`ExecutorError` if none can be started."""

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run a request. Raises :class:`ExecutorError` if it fails.

        ``timeout_s`` limits both the function's run time and the time spent waiting for a free function.
        """

    async def close(self) -> None:
        """Stop all functions within a bounded time. Requests in progress fail."""


def check_present(executor: Executor) -> None:
    """Raise :class:`ExecutorError` if an executor is unavailable."""
    if executor.absence:
        raise ExecutorError(f"the executor {executor.name} is unavailable: {executor.absence}", refused=True)


def executor_class(name: str) -> type[Executor]:
    """Return the executor class registered under this name."""
    path, _, attribute = EXECUTORS[name].implementation.partition(":")
    module = importlib.import_module(path)  # noqa: TID251  # of the registry
    implementation: type[Executor] = getattr(module, attribute)
    return implementation


def sees_store(executor: str, address: str) -> bool:
    """Return whether an executor's functions can access the store at ``address``.

    All functions can access a bucket, but only functions on this host can access a directory.
    """
    return EXECUTORS[executor].runs_on is RunsOn.THIS_HOST or address.startswith("s3://")


def shipped_prices_of(executor: str) -> Prices:
    """Return the shipped prices for an executor, or zero prices if it is unknown."""
    # Unlike price_table, this does not import pydantic, which takes a sixth of a coordinator's start.
    table = tomllib.loads(SHIPPED_PRICES.read_text(encoding="utf-8"))
    return Prices(**table.get(executor, {}))


def setting(
    default: Any,
    what: str = "",
    *,
    choices: tuple[str, ...] = (),
    low: float = 0,
    high: float = 0,
    secret: bool = False,
) -> Any:
    """Define a settings field with a default, help text and allowed values. It may be secret."""
    metadata = {"help": what, "choices": choices, "low": low, "high": high}
    return field(default=default, repr=not secret, metadata=metadata)


def check_settings(settings: Any) -> None:
    """Raise :class:`ConfigError` if a field defined by :func:`setting` has an invalid value."""
    for option in fields(settings):
        value, choices = getattr(settings, option.name), option.metadata.get("choices", ())
        low, high = option.metadata.get("low", 0), option.metadata.get("high", 0)
        if choices and value not in choices:
            raise ConfigError(f"{option.name} must be one of {', '.join(choices)}, not {value!r}")
        if high and not low <= value <= high:
            raise ConfigError(f"{option.name} must be from {low} to {high}, not {value}")


def one_line(text: str, most: int = MAX_WORDS) -> str:
    """Format untrusted text as one printable line of at most ``most`` characters."""
    # Joining words shortens the text, so start with more than fits.
    return shown(" ".join(text[: _SCAN * most].split()), most)
