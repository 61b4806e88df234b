"""The interface of executors, their settings, and the errors of invocations.

After a failed invocation, some samples may nevertheless be in the cache. Failures of
individual samples are reported in the result.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from superdl.coordinator.core import FailureKind, Prices
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.executors import EXECUTORS, RunsOn
from superdl.super_wire.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from superdl.coordinator.core import ExecutorResized
    from superdl.super_wire import coordinator_pb2 as pb
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult
    from superdl.super_wire.worker_process import WorkerProcess

# Maximum characters shown of a failure's kind and of its message, whatever its source.
MAX_KIND, MAX_WORDS = 80, 600
_SCAN = 4
# The fingerprint of a decoder.
DIGEST = re.compile(r"[0-9a-f]{32}")
SHIPPED_PRICES = Path(__file__).with_name("prices.toml")


class ExecutorError(SuperError):
    """A request could not be carried out, or functions could not be started.

    Args:
        kind: how it failed. After ``CRASHED``, the request may or may not have been carried
            out. ``RAISED`` means that the message contains the function's error, or that the
            request or its answer is too large; ``THROTTLED``, that no function was free in time.
        ran_s: billed seconds that a function ran for the request: an upper bound if a
            connection broke, and 0 if none ran or the time is unknown.
        refused: no function was invoked, so the invocation is not billed either.
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
    """What the coordinator passes to each executor, besides the executor's own settings."""

    cache: str
    # An import path, module:attribute.
    function: str = "superdl.lambda_prefetch.handler:handler"
    request_timeout_s: float = 60.0
    # Variables for functions on this machine, with the coordinator's permissions.
    environment: Mapping[str, str] = field(default_factory=dict)
    # For files of functions on this machine; created when needed.
    scratch: Path | None = None
    # A local executor's worker that is loading its modules already (worker_process.WorkerProcess).
    worker: WorkerProcess | None = None
    # Those that call in (called_in.Workers): that decode, or for the store alone, that restore and save.
    workers: Any = None
    # Directory of the coordinator's unix socket; empty if it listens on a port.
    sockets: str = ""


class Executor(Protocol):
    """A way to run functions, for one event loop. Raises ``ConfigError`` if a setting is invalid."""

    # Its row in the registry: ``local``, ``workers``, ``lambda``.
    name: ClassVar[str]

    # Its functions run on other machines, which cannot see this machine's files.
    remote: bool

    # The AWS region of its functions; empty if irrelevant.
    region: str

    # Number of requests that it accepts at once, now. The manager adds the executor's number.
    scaling: ExecutorResized

    # Digest of some images as all its functions decode them; empty before start().
    fingerprint: str

    # Reason that it takes no requests now; empty while it runs.
    absence: str = ""

    # If false, it serves the store alone.
    decodes: bool = True

    # Settings that clients may see; fields of the protocol's message ``Coordinating``.
    told: ClassVar[tuple[str, ...]] = ()

    # Settings that limit it to one function, for a trial.
    first_look: ClassVar[Mapping[str, Any]] = {}

    # Its calls are signed for AWS, which needs credentials and a correct clock.
    uses_aws: ClassVar[bool] = False

    # The connected workers, if it has any.
    connected: Sequence[pb.WorkerStats] = ()

    # Number of crashes, timeouts and restarts of slots.
    slot_failures: Mapping[str, int] = {}

    # Its functions keep shards in the context's scratch; set once it has started.
    keeps_shards: bool = False

    # Advice for functions that cannot see a directory.
    files_remedy: ClassVar[str] = "put the images into a bucket and use s3://bucket/prefix as the source"

    def __init__(self, settings: Any, context: ExecutorContext) -> None: ...

    async def start(self) -> None:
        """Prepare for requests within a bounded time; ``ExecutorError`` if no function can be started."""

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Carry out one request, or raise an :class:`ExecutorError`.

        ``timeout_s`` is the function's time limit, and also the longest wait for a free one.
        """

    async def close(self) -> None:
        """Stop everything that was started, within a bounded time. Requests in progress fail."""


def check_present(executor: Executor) -> None:
    """Raise :class:`ExecutorError` if an executor is unavailable."""
    if executor.absence:
        raise ExecutorError(f"the executor {executor.name} is unavailable: {executor.absence}", refused=True)


def executor_class(name: str) -> type[Executor]:
    """Return the class of the executor called ``name`` in the settings."""
    path, _, attribute = EXECUTORS[name].implementation.partition(":")
    module = importlib.import_module(path)  # noqa: TID251  # of the registry
    implementation: type[Executor] = getattr(module, attribute)
    return implementation


def executor_classes(names: Iterable[str]) -> list[type[Executor]]:
    """Return the classes of several executors, in their order."""
    return [executor_class(name) for name in names]


def sees_store(executor: str, address: str) -> bool:
    """Return whether an executor's functions can reach the store at ``address``.

    They all reach a bucket, but only functions on this host reach a directory.
    """
    return EXECUTORS[executor].runs_on is RunsOn.THIS_HOST or address.startswith("s3://")


def shipped_prices_of(executor: str) -> Prices:
    """Return the shipped prices of an executor, all zero if it is unknown."""
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
    """Define a settings field with its default, help text, allowed values, and whether it is secret."""
    metadata = {"help": what, "choices": choices, "low": low, "high": high}
    return field(default=default, repr=not secret, metadata=metadata)


def check_settings(settings: Any) -> None:
    """Raise :class:`ConfigError` unless each field made by :func:`setting` has an allowed value."""
    for option in fields(settings):
        value, choices = getattr(settings, option.name), option.metadata.get("choices", ())
        low, high = option.metadata.get("low", 0), option.metadata.get("high", 0)
        if choices and value not in choices:
            raise ConfigError(f"{option.name} must be one of {', '.join(choices)}, not {value!r}")
        if high and not low <= value <= high:
            raise ConfigError(f"{option.name} must be from {low} to {high}, not {value}")


def one_line(text: str, most: int = MAX_WORDS) -> str:
    """Return untrusted text as one printable line of at most ``most`` characters."""
    # Joining words shortens the text, so look at more than fits.
    return shown(" ".join(text[: _SCAN * most].split()), most)
