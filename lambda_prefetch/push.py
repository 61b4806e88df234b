"""The function's cache client: connections that outlive invocations, and a thread that pushes records."""

from __future__ import annotations

import functools
import json
import os
import queue
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from superdl.super_wire.cache import (
    CacheAddress,
    Command,
    ErrorReply,
    NodeConnections,
    WrongPasswordError,
    exchange,
)
from superdl.super_wire.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.super_wire.cache import Credentials, Reply

# Approximate overhead of each queued piece in Python.
MIN_PIECE_BYTES = 4096

_TIMEOUT_S = 15.0  # for an exchange, and for its second attempt after a broken connection
_MAX_RECORDS_PER_EXCHANGE = 64
_BUNDLE_RECORDS = 16
_BUNDLE_BYTES = 256 * 1024  # below the smallest allowed budget

_MAX_IDLE = 4
_ARN_PARTS = 7  # arn:aws:secretsmanager:region:account:secret:name
_FORM = 'a JSON object such as {"username": "super-function", "password": "..."}'
_DENIED = (
    "grant the function's role secretsmanager:GetSecretValue on it, and kms:Decrypt if it is encrypted "
    "with your own key"
)
_NO_ROUTE = (
    "a function in a VPC needs NAT or an interface endpoint for secretsmanager, and a security group that "
    "allows outbound and inbound traffic to it on port 443"
)
# By Secrets Manager's code, or boto3's exception.
_REMEDIES = {
    "AccessDeniedException": _DENIED,
    "403": _DENIED,  # for example from a proxy
    "DecryptionFailure": "grant the function's role kms:Decrypt on the key that encrypts it",
    "InvalidRequestException": "restore the secret if it is scheduled for deletion",
    "ResourceNotFoundException": "set SUPER_CACHE_SECRET to its ARN, or to its name in this region",
    "NoRegionError": "set AWS_REGION, or set SUPER_CACHE_SECRET to its ARN",
    "NoCredentialsError": "give the function a role",
    "PartialCredentialsError": "give the function a role",
}

# By process and address, least recently used first. A forked process must not use its parent's sockets.
_idle: dict[tuple[int, str], NodeConnections] = {}


@contextmanager
def cache_connections(cache: str, settings: FunctionSettings) -> Iterator[NodeConnections]:
    """Lend this process's connections to a cache for exclusive use. They stay open for the next call."""
    pool_key = os.getpid(), cache
    if nodes := _idle.pop(pool_key, None):
        # Allow one reconnection per invocation, because the cache may have restarted.
        nodes.renew()
    else:
        nodes = _new_connections(CacheAddress.parse(cache), settings)
    try:
        yield nodes
    except BaseException:
        nodes.close()
        raise
    surplus: NodeConnections | None = nodes
    if not nodes.all_broken:
        surplus, _idle[pool_key] = _idle.pop(pool_key, None), nodes
        if len(_idle) > _MAX_IDLE:
            surplus = _idle.pop(next(iter(_idle)))
    if surplus is not None:
        surplus.close()


def close_idle_connections() -> None:
    """Close all idle connections."""
    while _idle:
        _idle.popitem()[1].close()


def _new_connections(address: CacheAddress, settings: FunctionSettings) -> NodeConnections:
    def credentials() -> Credentials:
        if not settings.cache_secret:
            return settings.cache_credentials
        username, password = _read_secret(settings.cache_secret)
        return replace(settings.cache_credentials, username=username, password=password)

    def renewed(refused: Credentials, error: WrongPasswordError) -> Credentials:
        _read_secret.cache_clear()  # the secret may have changed
        if (current := credentials()) == refused:
            raise WrongPasswordError(
                f"{error}. Set SUPER_CACHE_SECRET to the secret that holds the cache's password. Local "
                "functions use the coordinator's settings"
            ) from error
        return current

    return NodeConnections(address, credentials(), renewed)


@functools.lru_cache(maxsize=_MAX_IDLE)
def _read_secret(name: str) -> tuple[str, str]:
    """Return the user name and password from a secret, given its ARN or its name in this region."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    # A secret with an ARN may be in another region than the function.
    parts = name.split(":")
    region = parts[3] if len(parts) >= _ARN_PARTS and parts[0] == "arn" else None
    retries: Any = {"mode": "standard", "total_max_attempts": 2}
    config = Config(connect_timeout=3, read_timeout=5, retries=retries, max_pool_connections=1)
    try:
        session = boto3.session.Session()
        with closing(session.client("secretsmanager", region_name=region, config=config)) as client:
            text = client.get_secret_value(SecretId=name).get("SecretString", "")
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        remedy = _REMEDIES.get(code, "the function reads the cache password from it")
        raise CacheError(f"Secrets Manager did not return the secret {name} ({error}): {remedy}") from error
    except (BotoCoreError, ValueError) as error:  # ValueError: the endpoint is not a URL
        remedy = _REMEDIES.get(type(error).__name__, _NO_ROUTE)
        raise CacheError(f"cannot read the secret {name} from Secrets Manager ({error}): {remedy}") from error
    try:
        content = json.loads(text)
    except ValueError:  # not chained: the error contains the text
        content = None
    if not isinstance(content, dict):
        raise CacheError(f"the secret {name} must be {_FORM}")
    username, password = content.get("username", ""), content.get("password", "")
    if not (isinstance(username, str) and isinstance(password, str) and password):
        raise CacheError(f"the secret {name} contains no password, but must be {_FORM}")
    return username, password


class BudgetClosedError(Exception):
    """The byte budget was closed because the invocation is ending."""


class ByteBudget:
    """A limit on the bytes that are held between two stages of the pipeline.

    Pieces are admitted in order of arrival. A piece larger than the capacity is admitted alone.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._closed = False
        self._turn = threading.Lock()
        self._changed = threading.Condition()

    def acquire(self, size_bytes: int) -> None:
        """Wait until ``size_bytes`` fit. Raises :class:`BudgetClosedError` after :meth:`close`."""
        # The minimum also limits the number of tiny pieces.
        counted_bytes = max(size_bytes, MIN_PIECE_BYTES)
        with self._turn, self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or self.used_bytes == 0
                    or self.used_bytes + counted_bytes <= self._capacity_bytes
                )
            )
            if self._closed:
                raise BudgetClosedError
            self.used_bytes += counted_bytes

    def release(self, *sizes_bytes: int) -> None:
        """Release the bytes of pieces with these sizes."""
        counted_bytes = sum([max(size_bytes, MIN_PIECE_BYTES) for size_bytes in sizes_bytes])
        with self._changed:
            self.used_bytes -= counted_bytes
            self._changed.notify()

    def close(self) -> None:
        """Make all current and future calls to :meth:`acquire` fail."""
        with self._changed:
            self._closed = True
            self._changed.notify()  # at most one thread waits here; _turn holds back the others


@dataclass(slots=True)
class Pushed:
    """The result of pushing a record. ``refusal`` is empty if the cache acknowledged the record."""

    index: int
    record_bytes: int
    push_us: int
    refusal: str


@dataclass(slots=True)
class _Record:
    index: int
    key: bytes
    header: bytes
    payload: memoryview
    size_bytes: int

    def command(self) -> Command:
        # Encoded here, because the payload must remain a separate buffer that is never copied.
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(self.key), self.key, self.size_bytes)
        return Command(self.key, (head + self.header, self.payload, b"\r\n"))


class Pusher:
    """A thread that stores records in the cache. Any thread can queue records for it.

    At most ``settings.push_bytes`` are queued. A normal exit from the context waits until every record has
    been acknowledged or refused and has an entry in :attr:`results`. An exit with an exception drops the
    queued records. ``stored`` is called on the pushing thread for each acknowledged record, with the
    sample's index in the request, the header and the payload. It must not raise.
    """

    def __init__(
        self,
        cache: str,
        settings: FunctionSettings,
        stored: Callable[[int, bytes, memoryview], None] | None = None,
    ) -> None:
        self.results: list[Pushed] = []
        # Why the cache accepts no more records in this invocation; empty while it accepts them.
        self.broken = ""
        self._stored = stored
        self._url = cache
        self._settings = settings
        self._budget = ByteBudget(settings.push_bytes)
        self._putting = threading.Lock()
        self._bundle: list[_Record] = []
        self._bundle_bytes = 0
        self._waiting: queue.SimpleQueue[list[_Record]] = queue.SimpleQueue()  # bounded by the budget
        self._cache: NodeConnections | None = None
        self._lending = ExitStack()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="super-push", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._abandoned = kind is not None
        self._hand_over()
        self._waiting.put([])  # ends the thread
        self._thread.join()  # every exchange has a deadline, so this ends

    def put(self, index: int, key: bytes, header: bytes, payload: memoryview) -> None:
        """Queue a record, waiting while too many bytes are queued."""
        size_bytes = len(header) + payload.nbytes
        record = _Record(index, key, header, payload, size_bytes)
        with self._putting:
            # Hand over the bundle before a large record waits for room in the budget.
            if self._bundle_bytes + size_bytes > _BUNDLE_BYTES:
                self._hand_over()
            self._budget.acquire(size_bytes)
            self._bundle.append(record)
            self._bundle_bytes += size_bytes
            # Bundle small records, because waking the thread takes as long as decoding a small image.
            if len(self._bundle) == _BUNDLE_RECORDS or self._bundle_bytes > _BUNDLE_BYTES:
                self._hand_over()

    def _hand_over(self) -> None:
        if self._bundle:
            self._waiting.put(self._bundle)
        self._bundle, self._bundle_bytes = [], 0

    def _run(self) -> None:
        more = True
        with self._lending:
            while more:
                records, more = self._next_batch()
                if records and not self._abandoned:
                    self._store(records)
                self._budget.release(*[record.size_bytes for record in records])

    def _next_batch(self) -> tuple[list[_Record], bool]:
        """Wait for queued records. Return them and whether more may follow."""
        # A fast cache receives each bundle immediately. If it slows down, batches grow.
        records: list[_Record] = []
        bundle = self._waiting.get()
        while bundle:
            records += bundle
            if len(records) >= _MAX_RECORDS_PER_EXCHANGE:
                return records, True
            try:
                bundle = self._waiting.get_nowait()
            except queue.Empty:
                return records, True
        return records, False

    def _store(self, records: list[_Record]) -> None:
        begun_ns, refusals = time.perf_counter_ns(), [self.broken] * len(records)
        if not self.broken:
            try:
                if self._cache is None:
                    self._cache = self._lending.enter_context(cache_connections(self._url, self._settings))
                commands = [record.command() for record in records]
                refusals = list(map(_refusal, exchange(self._cache, commands, timeout_s=_TIMEOUT_S)))
                self.broken = self._cache.all_broken
            except Exception as error:  # noqa: BLE001  # otherwise the invocation would hang
                self.broken = str(error) or type(error).__name__
                refusals = [self.broken] * len(records)
        push_us = (time.perf_counter_ns() - begun_ns) // (1000 * len(records))
        for record, refusal in zip(records, refusals, strict=True):
            self.results.append(Pushed(record.index, record.size_bytes, push_us, refusal))
            if self._stored is not None and not refusal:
                self._stored(record.index, record.header, record.payload)


def _refusal(reply: Reply | CacheError) -> str:
    if isinstance(reply, ErrorReply):
        return reply.text
    if isinstance(reply, CacheError):
        return str(reply)
    return "" if reply == b"OK" else f"the cache sent an unexpected reply: {reply!r:.60}"
