"""Run a host's share of a training run: ``python -m infra.launcher`` on each host (docs/deploy/clusters.md).

The first CPU host runs the cache and the coordinator, and every CPU host runs a worker. Without CPU hosts,
the first GPU host runs all three. All hosts exit with the exit code of training.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.coordinator.embedded import server_binary, start_server, start_tied
from superdl.super_wire.cache import Credentials
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.host import available_memory_bytes, usable_cores
from superdl.super_wire.user_text import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_log = logging.getLogger("infra.launcher")

_CONFIG, _FAILURE = Path("/opt/ml/input/config"), Path("/opt/ml/output/failure")  # SageMaker's
_PORTS = "50051,50052,29500"
_PYTHON = (sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m")
_SIGNAL = 128


@dataclass(frozen=True, slots=True)
class Run:
    """The hosts of a run and the training command."""

    data_hosts: tuple[str, ...]  # hosts that preprocess; may be empty
    training_hosts: tuple[str, ...]
    current: str  # this host
    ranks: int  # training processes on this host; 0 means one per GPU, or per core without GPUs
    name: str  # identical on all hosts
    command: tuple[str, ...]  # the script and its arguments; or -m, a module and its arguments
    ports: tuple[int, ...]  # ports of coordinator, cache and torch's rendezvous

    @property
    def leader(self) -> str:
        """The host that runs the cache and the coordinator."""
        return (*self.data_hosts, *self.training_hosts)[0]

    @property
    def coordinator(self) -> str:
        """The coordinator's address, or an empty string for a single host, whose trainers start one."""
        return f"{self.leader}:{self.ports[0]}" if self.data_hosts or len(self.training_hosts) > 1 else ""


def run_of(arguments: Sequence[str], environment: Mapping[str, str], config: Path = _CONFIG) -> Run:
    """Return the run described by the options, or else by SageMaker's variables or files in ``config``."""
    data, training, current = tuple[str, ...](), tuple[str, ...](), ""
    if "--" in arguments:
        at = list(arguments).index("--")
        parser = argparse.ArgumentParser(prog="python -m infra.launcher", allow_abbrev=False)
        parser.add_argument("--data-hosts", default="", help="hosts that preprocess, separated by commas")
        parser.add_argument("--training-hosts", default="", help="hosts that train, separated by commas")
        parser.add_argument("--host", default="", help="the name of this host (its host name)")
        options, command = parser.parse_args(arguments[:at]), list(arguments[at + 1 :])
        named = options.data_hosts, options.training_hosts
        data, training = (tuple(filter(None, text.split(","))) for text in named)
        current = options.host or socket.gethostname()
    else:  # hyper-parameters, which are all passed to the script except its name
        words = list(arguments) or _words(_read(config / "hyperparameters.json"))
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--train-script", default="")
        known, script_arguments = parser.parse_known_args(words)
        command = [known.train_script, *script_arguments]
    if not training:
        data, training, current = _sagemaker_hosts(environment, config)
    if not "".join(command[:1]):
        raise ConfigError("no training script: set the hyper-parameter train-script, or pass it after --")
    if current not in (*data, *training) or not training:
        raise ConfigError(
            f"this host is {current!r}, data hosts are {list(data)}, training hosts {list(training)}: at "
            "least one host must train, and this one must be listed (--host, or SageMaker's SM_CURRENT_HOST)"
        )
    ports = tuple(map(int, environment.get("SUPER_LAUNCHER_PORTS", _PORTS).split(",")))
    gpus, name = environment.get("SM_NUM_GPUS"), environment.get("TRAINING_JOB_NAME") or "superdl"
    return Run(data, training, current, max(1, int(gpus)) if gpus else 0, name, tuple(command), ports)


def _sagemaker_hosts(
    environment: Mapping[str, str], config: Path
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    resources = _read(config / "resourceconfig.json")
    hosts = json.loads(environment["SM_HOSTS"]) if "SM_HOSTS" in environment else resources.get("hosts", [])
    groups_json = environment.get("SM_INSTANCE_GROUPS_DICT") or "{}"
    groups = json.loads(groups_json).values() or resources.get("instance_groups") or ()
    preprocessing = {
        host for group in groups if group["instance_group_name"] == "data_group" for host in group["hosts"]
    }
    hosts = sorted(hosts, key=lambda host: (len(host), host))  # algo-2 before algo-10
    data = tuple(host for host in hosts if host in preprocessing)
    training = tuple(host for host in hosts if host not in preprocessing)
    return data, training, environment.get("SM_CURRENT_HOST") or resources.get("current_host", "")


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_bytes()) if file.exists() else {}
    return content


def _words(parameters: Mapping[str, str]) -> list[str]:
    """Convert hyperparameters to command-line arguments."""
    # SageMaker's SDK writes strings as JSON, and adds internal parameters.
    words = []
    for name, value in sorted(parameters.items()):
        if not name.startswith("sagemaker_"):
            words += [f"--{name}", str(json.loads(value)) if value.startswith('"') else value]
    return words


def _preprocess(run: Run) -> int:
    """Run a CPU host's part. Return the exit code that the coordinator reports at the end of the run."""
    with contextlib.ExitStack() as stack:
        coordinator = _start_services(run, stack) if run.current == run.leader else None
        worker = (*_PYTHON, "superdl.lambda_prefetch.worker")
        options = ("--coordinator", run.coordinator, "--name", run.current)
        code = _held(start_tied([*worker, *options], signal.SIGTERM), stack).wait()
        if coordinator is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                coordinator.wait(20.0)  # it still releases late workers
        return code if code >= 0 else _SIGNAL - code


def _train(run: Run) -> int:
    """Run a GPU host's part. Return the exit code of training."""
    is_first = run.current == run.training_hosts[0]
    options = (
        f"--nnodes={len(run.training_hosts)}",
        f"--nproc-per-node={run.ranks or 'auto'}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={run.training_hosts[0]}:{run.ports[2]}",
        f"--rdzv-conf=is_host={int(is_first)}",
        f"--rdzv-id={run.name}",
        f"--local-addr={socket.gethostbyname(run.current)}",
    )
    script = ("-m", "--", *run.command[1:]) if run.command[0] == "-m" else ("--", *run.command)
    with contextlib.ExitStack() as stack:
        if run.coordinator:
            os.environ["SUPER_COORDINATOR"] = run.coordinator
            os.environ.setdefault("SUPER_CONNECT_TIMEOUT_S", "600")
            if run.current == run.leader:
                _start_services(run, stack)
        code = _torchrun([*options, *script])
        # Each failed host reports at once, but only the first host reports success.
        if run.data_hosts and (code or is_first):
            from superdl.sampler.rpc.client import FIRST_CONTACT, Client
            from superdl.super_wire import coordinator_pb2 as pb

            try:
                Client(run.coordinator).call("EndRun", pb.EndRunRequest(exit_code=code), FIRST_CONTACT)
            except SuperError as error:  # only the exit code of training matters
                _log.warning("cannot report the end of the run to the coordinator: %s", error)
        return code


def _torchrun(words: Sequence[str]) -> int:
    """Run ``torchrun`` in this process. Return the exit code of the first rank that failed, or 0."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(list(words))
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        _, failure = error.get_first_failure()
        return int(failure.exitcode if failure.exitcode > 0 else _SIGNAL - failure.exitcode)
    except SignalException as error:
        return _SIGNAL + int(error.sigval)
    return 0


def _start_services(run: Run, stack: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    """Start the coordinator and, unless ``SUPER_CACHE`` is set, a cache. Return the coordinator's process."""
    address, cache = socket.gethostbyname(run.current), os.environ.get("SUPER_CACHE", "")
    if not cache:
        _start_cache(address, run.ports[1], stack)
        scheme = "rediss" if os.environ.get("SUPER_TLS_CERT") else "redis"
        cache = f"{scheme}://{run.leader}:{run.ports[1]}"
    options = (
        f"--listen={address}:{run.ports[0]}",
        f"--cache={cache}",
        f"--executor={'workers' if run.data_hosts else 'local'}",
        # Leave a core for each training process.
        f"--slots={max(1, usable_cores() - run.ranks)}",
        f"--owner=launcher-{run.name}",
        "--ends-with-run",
    )
    return _held(start_tied([*_PYTHON, "superdl.coordinator", *options], signal.SIGTERM), stack)


def _start_cache(address: str, port: int, stack: contextlib.ExitStack) -> None:
    """Start a cache server with the coordinator's TLS settings and password."""
    cert, key = (os.environ.get(name, "") for name in ("SUPER_TLS_CERT", "SUPER_TLS_KEY"))
    server = shutil.which("valkey-server") or shutil.which("redis-server") if cert else server_binary()
    if server is None:
        raise ConfigError("a cache with TLS needs valkey-server or redis-server on this host, or SUPER_CACHE")
    files = (f'tls-cert-file "{cert}"', f'tls-key-file "{key}"', "tls-auth-clients no")
    ports = ("port 0", f"tls-port {port}", *files) if cert else (f"port {port}",)
    listens = (f"bind {address}", "protected-mode no", *ports)
    given_bytes = parse_bytes(os.environ.get("SUPER_CACHE_BYTES") or "0", "SUPER_CACHE_BYTES")
    cache_bytes = given_bytes or available_memory_bytes() // 2
    # The directory must be private, because the server would load any dump.rdb in it.
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="super-l-"))
    credentials = Credentials.from_environment(os.environ)
    _held(start_server(server, listens, Path(directory), cache_bytes, credentials), stack)


def _held(process: subprocess.Popen[bytes], stack: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    """Return the process, and have the stack terminate it on closing."""
    # The stack calls these in reverse order.
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def main(arguments: Sequence[str] | None = None) -> int:
    """Run this host's part. Return the exit code of training, or 2 for an invalid setting."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="launcher: %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_SIGNAL + signal.SIGTERM))
    try:
        run = run_of(sys.argv[1:] if arguments is None else arguments, os.environ)
        return _train(run) if run.current in run.training_hosts else _preprocess(run)
    except SuperError as error:
        sys.stderr.write(f"infra.launcher: {error}\n")
        # SageMaker displays this file as the reason for the failure.
        if _FAILURE.parent.is_dir():
            _FAILURE.write_text(f"{error}\n", encoding="utf-8")
        return 2 if isinstance(error, ConfigError) else 1


if __name__ == "__main__":
    sys.exit(main())
