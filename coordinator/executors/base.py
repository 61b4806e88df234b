"""The interface of executors, their self-description, and the errors of invocations.

A failed invocation reveals nothing about its samples: some may be in the cache. Failures of single samples
are not errors here; the result reports them.
"""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from superdl.coordinator.core import FailureKind, Prices
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.executors import EXECUTORS
from superdl.super_wire.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from superdl.coordinator.cache.streams import OutcomeReader
    from superdl.super_wire import coordinator_pb2 as pb
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = [
    "MAX_KIND",
    "MAX_WORDS",
    "SHIPPED_PRICES",
    "ConnectionLostError",
    "Executor",
    "ExecutorContext",
    "ExecutorError",
    "FunctionCrashedError",
    "FunctionLostError",
    "FunctionRaisedError",
    "FunctionTimedOutError",
    "PayloadTooLargeError",
    "Scaling",
    "ThrottledError",
    "check_settings",
    "executor_class",
    "executor_classes",
    "one_line",
    "setting",
    "shipped_prices_of",
]

MAX_KIND, MAX_WORDS = 80, 600
"""Maximum characters shown of a failure's kind and of its message, whatever its source."""
_SCAN = 4
SHIPPED_PRICES = Path(__file__).with_name("prices.toml")


class ExecutorError(SuperError):
    """A request could not be carried out, or functions could not be started.

    ``ran_s`` is how long a function ran for it, which is billed; 0 if none ran, or if unknown. ``refused``:
    no function was invoked, so the invocation is not billed either.
    ``wrong_settings``: only other settings can help. ``kind`` is the failure's, for the core.
    """

    kind: ClassVar = FailureKind.UNAVAILABLE
    ran_s: float = 0.0
    refused: bool = False
    wrong_settings: bool = False


class ConnectionLostError(ExecutorError):
    """The answer's connection broke, by no request's fault; ``ran_s`` is an upper bound."""


class FunctionCrashedError(ExecutorError):
    """The function's process is gone. The request may or may not have been carried out."""

    kind = FailureKind.CRASHED


class FunctionTimedOutError(ExecutorError):
    """The function did not answer within its time limit, and was ended."""

    kind = FailureKind.TIMED_OUT


class FunctionLostError(ExecutorError):
    """The request was sent, but no answer came: whether a function ran is unknown."""

    kind = FailureKind.LOST


class FunctionRaisedError(ExecutorError):
    """The function raised; the message has the error's type and text."""

    kind = FailureKind.RAISED


class PayloadTooLargeError(ExecutorError):
    """The request or its result has too many bytes: request fewer samples at once."""

    kind = FailureKind.RAISED


class ThrottledError(ExecutorError):
    """No function was free in time; the request was not started."""

    kind = FailureKind.THROTTLED


@dataclass(frozen=True, slots=True)
class Scaling:
    """Number of requests that an executor accepts at once.

    At most ``capacity``: ``burst`` immediately and ``per_s`` more each second, as AWS Lambda adds
    environments. ``backlog`` more may wait for a free function. ``queues``: excess requests are not refused
    but start late, or are dropped silently.
    """

    capacity: int
    burst: int
    per_s: float
    backlog: int
    queues: bool = False


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """The coordinator's facts for each executor, apart from the executor's own settings.

    ``function`` is an import path, ``module:attribute``; ``environment`` has variables for functions on this
    machine, with the coordinator's permissions. ``outcomes`` delivers answers through the cache; ``scratch``,
    created when needed, is for files of functions on this machine. ``workers`` are those that call in
    (:class:`superdl.coordinator.executors.called_in.Workers`), ``savers`` those that only restore and save.
    ``sockets`` is the directory of the coordinator's unix socket, empty if it listens on a port.
    """

    cache: str
    function: str = "superdl.lambda_prefetch.handler:handler"
    request_timeout_s: float = 60.0
    environment: Mapping[str, str] = field(default_factory=dict)
    outcomes: OutcomeReader | None = None
    scratch: Path | None = None
    workers: Any = None
    savers: Any = None
    sockets: str = ""


class Executor(Protocol):
    """A way to run functions, for use from one event loop. Most class attributes have a default.

    ``ConfigError`` on creation: one of its settings is wrong.
    """

    name: ClassVar[str]
    """Its row in the registry: ``local``, ``workers``, ``lambda``."""

    remote: bool
    """True if its functions run on other machines, which cannot see this machine's files."""

    region: str
    """The AWS region of its functions; empty if irrelevant."""

    scaling: Scaling
    """Number of requests that it accepts at once, now."""

    fingerprint: str
    """Digest of some images as all its functions decode them; empty before :meth:`start`."""

    told: ClassVar[tuple[str, ...]] = ()
    """Settings that clients may see; fields of the protocol's message ``Coordinating``."""

    first_look: ClassVar[Mapping[str, Any]] = {}
    """Settings that limit it to one function, for a trial."""

    uses_aws: ClassVar[bool] = False
    """True if its calls are signed for AWS, which needs credentials and a correct clock."""

    connected: Sequence[pb.WorkerStats] = ()
    """The connected workers, if it has any."""

    slot_failures: Mapping[str, int] = {}
    """Number of crashes, timeouts and restarts of slots."""

    keeps_shards: bool = False
    """True if its functions keep shards in the context's ``scratch``; set once it has started."""

    files_by_others: ClassVar[bool] = False
    """True if its functions may read this machine's files as another user."""

    files_remedy: ClassVar[str] = "put the images into a bucket and name it as s3://bucket/prefix"
    """Advice for functions that cannot see a directory."""

    def __init__(self, settings: Any, context: ExecutorContext) -> None: ...

    @classmethod
    def answers_by_stream(cls, settings: Any) -> bool:  # noqa: ARG003  # others look at their settings
        """Return whether its answers come through the cache instead of by return."""
        return False

    @classmethod
    def sees_store(cls, settings: Any, address: str) -> bool:  # noqa: ARG003  # others look at their settings
        """Return whether its functions reach the store at ``address``; always, if a bucket."""
        return address.startswith("s3://")

    async def start(self) -> None:
        """Prepare to invoke, within a bounded time; ``ExecutorError``: no function could be started."""

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Carry out one request, or raise one of the :class:`ExecutorError` kinds.

        ``timeout_s`` is the function's time limit in seconds, and also the longest wait for a free one.
        """

    async def close(self) -> None:
        """End everything it started, within a bounded time. Requests in progress fail."""


def executor_class(name: str) -> type[Executor]:
    """Return the class of the executor that settings call ``name``."""
    module, _, attribute = EXECUTORS[name].implementation.partition(":")
    implementation: type[Executor] = getattr(importlib.import_module(module), attribute)
    return implementation


def executor_classes(names: Iterable[str]) -> list[type[Executor]]:
    """Return the classes of several executors, in their order."""
    return [executor_class(name) for name in names]


def shipped_prices_of(executor: str) -> Prices:
    """Return the shipped prices of an executor; zero for an unknown one."""
    # Without pydantic, whose import is a sixth of a coordinator's start.
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
    """Define a field of settings: default, help text, allowed values, and whether it is secret."""
    metadata = {"help": what, "choices": choices, "low": low, "high": high}
    return field(default=default, repr=not secret, metadata=metadata)


def check_settings(settings: Any) -> None:
    """Raise :class:`ConfigError` unless each field made by :func:`setting` has an allowed value."""
    for option in fields(settings):
        value, choices = getattr(settings, option.name), option.metadata.get("choices", ())
        low, high = option.metadata.get("low", 0), option.metadata.get("high", 0)
        if choices and value not in choices:
            raise ConfigError(f"{option.name} is one of {', '.join(choices)}; not {value!r}")
        if high and not low <= value <= high:
            raise ConfigError(f"{option.name} is from {low} to {high}; not {value}")


def one_line(text: str, most: int = MAX_WORDS) -> str:
    """Return untrusted text as one printable line of at most ``most`` characters."""
    # Joining words shortens the text, so look at more than fits.
    return shown(" ".join(text[: _SCAN * most].split()), most)
