"""Simulate the hosts of a run as 127.0.0.2, 127.0.0.3 and so on: ``python -m infra.local_hosts``."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time

_POLL_S, _END_S = 0.1, 60.0
_FIRST, _MOST = 2, 250  # 127.0.0.2 and so on
_STEPS = "experiments.augmentations.heavy"  # used by a built-in spec


def main() -> int:
    """Run all hosts. Return the exit code of the first one that failed, or 0."""
    parser = argparse.ArgumentParser(prog="python -m infra.local_hosts")
    parser.add_argument("--training", type=int, default=1, help="number of training hosts (default: 1)")
    parser.add_argument("--data", type=int, default=0, help="number of preprocessing hosts (default: 0)")
    parser.add_argument(
        "--cores", type=int, default=0, help="cores of each training host; the other hosts share the rest"
    )
    parser.add_argument("command", nargs="+", help="the command, after --: train.py [arguments]")
    options = parser.parse_args()
    count, cores = options.training + options.data, sorted(os.sched_getaffinity(0))
    rest = cores[options.cores * options.training :] if options.cores else []
    if options.training < 1 or options.data < 0 or count > _MOST or options.cores < 0:
        parser.error(f"there must be 1 to {_MOST} hosts, and at least one must train")
    if options.cores * options.training + bool(options.cores and options.data) > len(cores):
        parser.error(f"{len(cores)} cores are too few for {count} hosts: lower --cores")
    hosts = [f"127.0.0.{_FIRST + number}" for number in range(count)]
    environment = _environment(options.cores or max(1, len(cores) // options.training))
    data, training = ",".join(hosts[: options.data]), ",".join(hosts[options.data :])
    processes = []
    for number, host in enumerate(hosts, -options.data):
        own = cores[number * options.cores : (number + 1) * options.cores] if number >= 0 else rest
        held = ["taskset", "-c", ",".join(map(str, own))] if own else []
        command = [*held, sys.executable, "-m", "infra.launcher", f"--data-hosts={data}"]
        command += [f"--training-hosts={training}", f"--host={host}", "--", *options.command]
        processes.append(subprocess.Popen(command, env=environment))
    return _ended(processes)


def _environment(threads: int) -> dict[str, str]:
    with contextlib.ExitStack() as stack:
        # All sockets stay open until the ports are known, so that they differ.
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for bound_socket in sockets:
            bound_socket.bind(("", 0))
        ports = ",".join(str(bound_socket.getsockname()[1]) for bound_socket in sockets)
    return {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        "SM_NUM_GPUS": "1",
        "SUPER_LAUNCHER_PORTS": ports,
        "SUPER_SHARED_FILES": "1",  # the hosts of one machine see the same files
        "SUPER_STEP_MODULES": _STEPS,
        "TRAINING_JOB_NAME": f"local-{secrets.token_hex(4)}",
        # Last: variables that are already set win.
        **os.environ,
    }


def _ended(processes: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all hosts, stopping the rest after a failure or a signal. Return the exit code."""
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    deadline_s, passed_on = math.inf, False
    codes: list[int] = []  # of those that failed, the first one first
    while living := [process for process in processes if process.returncode is None]:
        codes += [code for process in living if (code := process.poll())]
        if signals and not passed_on:
            passed_on = True
            for process in living:
                process.send_signal(signal.SIGTERM)
        if codes or signals:
            # The others have some time to end.
            deadline_s = min(deadline_s, time.monotonic() + _END_S)
        if time.monotonic() > deadline_s:
            for process in living:
                process.kill()
        time.sleep(_POLL_S)
    # A negative code is the signal that ended the process.
    code = -signals[0] if signals else next(iter(codes), 0)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
