"""What the coordinator asks of an executor, what an executor states of itself, and how an invocation fails.

An invocation that fails says nothing of its samples: some may be in the cache. Failures of single samples are
no errors here; the result tells them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from superdl.coordinator.core import FailureKind
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from superdl.coordinator.cache.outcomes import OutcomeReader
    from superdl.super_wire import coordinator_pb2 as pb
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = [
    "MAX_KIND",
    "MAX_WORDS",
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
    "failure_kind",
    "one_line",
    "setting",
]

MAX_KIND, MAX_WORDS = 80, 600
"""Characters of a failure's kind and of its words that are shown, whoever says them."""
_SCAN = 4


class ExecutorError(SuperError):
    """A request could not be carried out, or functions could not be started.

    ``ran_s`` is how long a function ran for it, which is billed; 0 if none did, or if nobody knows.
    ``refused`` says that none was even asked, so that not the invocation is billed either.
    ``wrong_settings`` says that nothing but other settings can help.
    """

    ran_s: float = 0.0
    refused: bool = False
    wrong_settings: bool = False


class ConnectionLostError(ExecutorError):
    """What was to bring the answer broke, by no request's fault; ``ran_s`` is an upper bound."""


class FunctionCrashedError(ExecutorError):
    """What ran the function is gone; the request may or may not have been carried out."""


class FunctionTimedOutError(ExecutorError):
    """The function did not answer within its time limit, and was ended."""


class FunctionLostError(ExecutorError):
    """The request was sent and its answer never came: whether a function ran, or ran well, is not known."""


class FunctionRaisedError(ExecutorError):
    """The function raised; the message names type and words of its error."""


class PayloadTooLargeError(ExecutorError):
    """The request or its result has more bytes than the executor carries: ask for fewer samples at once."""


class ThrottledError(ExecutorError):
    """No function was free in time; the request was not begun."""


_KINDS: tuple[tuple[type[SuperError], FailureKind], ...] = (
    (FunctionCrashedError, FailureKind.CRASHED),
    (FunctionTimedOutError, FailureKind.TIMED_OUT),
    (FunctionLostError, FailureKind.LOST),
    (FunctionRaisedError, FailureKind.RAISED),
    (PayloadTooLargeError, FailureKind.RAISED),
    (ThrottledError, FailureKind.THROTTLED),
    (ExecutorError, FailureKind.UNAVAILABLE),
    (ConfigError, FailureKind.RAISED),
)


def failure_kind(error: ExecutorError | ConfigError) -> FailureKind:
    """Classify a failed invocation, as the core needs it."""
    return next(kind for cause, kind in _KINDS if isinstance(error, cause))


@dataclass(frozen=True, slots=True)
class Scaling:
    """How many requests an executor takes at once: ``capacity`` at most, ``burst`` of them right away and
    ``per_s`` more each second, as AWS Lambda adds environments; ``backlog`` more may wait for a free
    function. ``queues``: what comes too soon is not refused but begun late, or dropped without a word.
    """

    capacity: int
    burst: int
    per_s: float
    backlog: int
    queues: bool = False


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """What a coordinator gives to each executor beside the executor's own settings.

    Attributes:
        cache: the cache's address, as requests name it.
        function: the function's import path, ``module:attribute``.
        request_timeout_s: how long a function may take before it begins a sample.
        environment: variables for functions on this machine: what the coordinator allows, they are allowed.
        outcomes: brings answers through the cache; there only if an executor answers so.
        scratch: a directory, made when it is needed, for what functions on this machine keep while it runs.
        workers: those that call in (:class:`superdl.coordinator.executors.called_in.Workers`); there
            only in a coordinator.
        savers: likewise those that call in to restore and save alone.
        sockets: the directory of the coordinator's unix socket; empty where it listens on a port.
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
    """A way to run functions, used from one event loop. Most of what a class states has a default.

    Args:
        settings: its own among them.
        context: what the coordinator gives.

    Raises:
        ConfigError: a setting of it is wrong.
    """

    name: ClassVar[str]
    """Its row in the registry: ``local``, ``workers``, ``lambda``."""

    remote: bool
    """Whether its functions run on other machines, which see none of this one's files."""

    region: str
    """The AWS region that its functions run in; empty where that is no matter."""

    scaling: Scaling
    """How many requests it takes at once, now."""

    fingerprint: str
    """Digest of some images as all its functions decode them; empty before :meth:`start`."""

    told: ClassVar[tuple[str, ...]] = ()
    """Its settings that clients may know; fields of the protocol's message ``Coordinating``."""

    first_look: ClassVar[Mapping[str, Any]] = {}
    """Settings with which it starts no more than one function, where only one is to be tried."""

    uses_aws: ClassVar[bool] = False
    """Whether its calls are signed for AWS, which needs credentials and a clock that is right."""

    connected: Sequence[pb.WorkerStats] = ()
    """The workers that are connected to it, where it has any."""

    slot_failures: Mapping[str, int] = {}
    """How often their slots crashed, timed out and were started anew."""

    keeps_shards: bool = False
    """Whether its functions keep shards in the directory ``scratch`` of the context, once it has started."""

    files_by_others: ClassVar[bool] = False
    """Whether its functions may read this machine's files as another user than the coordinator's."""

    files_remedy: ClassVar[str] = "put the images into a bucket and name it as s3://bucket/prefix"
    """What helps where its functions do not see a directory."""

    def __init__(self, settings: Any, context: ExecutorContext) -> None: ...

    @classmethod
    def answers_by_stream(cls, settings: Any) -> bool:  # noqa: ARG003  # others look at their settings
        """Whether its answers come through the cache, and not by return."""
        return False

    @classmethod
    def sees_store(cls, settings: Any, address: str) -> bool:  # noqa: ARG003  # others look at their settings
        """Whether its functions reach the store at ``address``: everybody reaches a bucket."""
        return address.startswith("s3://")

    async def start(self) -> None:
        """Make ready to invoke, within a bounded time.

        Raises:
            ExecutorError: no function could be started; the message says why.
        """

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Carry out one request.

        Args:
            request: which samples.
            timeout_s: the function's time limit in seconds, and also the longest wait for a free one.

        Raises:
            ExecutorError: any of its kinds.
        """

    async def close(self) -> None:
        """End all that was started, within a bounded time. Requests under way fail."""


def setting(
    default: Any,
    what: str = "",
    *,
    choices: tuple[str, ...] = (),
    low: float = 0,
    high: float = 0,
    secret: bool = False,
) -> Any:
    """A field of settings: its default, the help of its argument, what it may be, and whether it is shown."""
    metadata = {"help": what, "choices": choices, "low": low, "high": high}
    return field(default=default, repr=not secret, metadata=metadata)


def check_settings(settings: Any) -> None:
    """See that each field that :func:`setting` has made holds what it may.

    Raises:
        ConfigError: one does not; the message names it and says what it may be.
    """
    for one in fields(settings):
        value, choices = getattr(settings, one.name), one.metadata.get("choices", ())
        low, high = one.metadata.get("low", 0), one.metadata.get("high", 0)
        if choices and value not in choices:
            raise ConfigError(f"{one.name} is one of {', '.join(choices)}; not {value!r}")
        if high and not low <= value <= high:
            raise ConfigError(f"{one.name} is from {low} to {high}; not {value}")


def one_line(text: str, most: int = MAX_WORDS) -> str:
    """A text from elsewhere as one printable line of at most ``most`` characters: for logs and replies."""
    return shown(" ".join(text[: _SCAN * most].split()), most)
