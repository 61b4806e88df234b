"""What the coordinator asks of an executor, and how an invocation fails.

    ExecutorError
    ├── ConnectionLostError      the way back of the answer broke; a function may have run
    ├── FunctionCrashedError     the process or machine that ran the function is gone
    ├── FunctionTimedOutError    the function did not answer within its time limit
    ├── FunctionLostError        the request was sent, and nobody can tell what became of it
    ├── FunctionRaisedError      the function refused the request as a whole, or is broken
    ├── PayloadTooLargeError     request or result are larger than the executor carries
    └── ThrottledError           no function was free to take the request in time

An invocation that fails says nothing of its samples: some may be in the cache. Failures of single samples are
no errors here; the result tells them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = [
    "ConnectionLostError",
    "Executor",
    "ExecutorError",
    "FunctionCrashedError",
    "FunctionLostError",
    "FunctionRaisedError",
    "FunctionTimedOutError",
    "PayloadTooLargeError",
    "Scaling",
    "ThrottledError",
]


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


@dataclass(frozen=True, slots=True)
class Scaling:
    """How many requests an executor takes at once.

    ``capacity`` at most, ``burst`` of them right away and ``per_s`` more each second, as AWS Lambda adds
    environments; ``backlog`` more may wait for a free function. ``queues`` says that what comes too soon is
    not refused but waits, for so long that it may be dropped without a word.
    """

    capacity: int
    burst: int
    per_s: float
    backlog: int
    queues: bool = False


class Executor(Protocol):
    """A way to run functions, used from one event loop."""

    @property
    def name(self) -> str:
        """What people call it: ``local``, ``lambda``, ``ray``."""

    @property
    def remote(self) -> bool:
        """Whether its functions run on other machines, which see none of this one's files."""

    @property
    def region(self) -> str:
        """The AWS region that its functions run in; empty where that is no matter."""

    @property
    def scaling(self) -> Scaling:
        """How many requests it takes at once."""

    @property
    def golden(self) -> str:
        """Digest of the golden images as all its functions decode them; empty before :meth:`start`."""

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
