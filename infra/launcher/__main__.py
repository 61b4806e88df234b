"""``python -m infra.launcher [options] -- train.py [arguments]``: one host's part of a training run.

It is started on every host of the run, with the same options. On SageMaker the hosts are told by the
platform, elsewhere by flags or by the same variables. The exit code is training's, on every host; else it
says what failed (docs/clusters.md lists them), and the reason is the last line on stderr and in the failure
file.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from infra.launcher.cluster import DATA_GROUP, TRAINING_GROUP, Cluster, cluster_of_flags, cluster_of_sagemaker
from infra.launcher.host import run_host
from infra.launcher.hyperparameters import words_of_hyperparameters
from infra.launcher.settings import SPARE, LaunchSettings
from infra.launcher.verdicts import EXIT_WRONG_SETTINGS, Verdict
from sampler.host import parse_bytes
from super_wire.discretion import keep_secrets_out_of_logs
from super_wire.errors import ConfigError, SuperError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["main"]

_log = logging.getLogger("infra.launcher")

_CONFIG = "/opt/ml/input/config"
_FAILURE = "/opt/ml/output/failure"
_FAILURE_CHARACTERS = 1024  # of which SageMaker makes the job's FailureReason


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m infra.launcher",
        usage="%(prog)s [options] -- train.py [arguments]",
        description="Run one host's part of a training run with SUPER.",
    )
    hosts = parser.add_argument_group("hosts (none of these on SageMaker)")
    hosts.add_argument("--data-hosts", default="", help="hosts that preprocess, separated by commas")
    hosts.add_argument("--training-hosts", default="", help="hosts that train, in the order of their ranks")
    hosts.add_argument("--host", default="", help="which of them this one is (SM_CURRENT_HOST)")
    hosts.add_argument("--data-group", default=DATA_GROUP, help="SageMaker's instance group of data hosts")
    hosts.add_argument("--training-group", default=TRAINING_GROUP, help="the one of training hosts")
    parts = parser.add_argument_group("what runs")
    parts.add_argument("--executor", help="how functions run: ray (default), local, lambda, or several")
    parts.add_argument("--coordinator", help="one that runs already; then no cache and no Ray are started")
    parts.add_argument("--cache", help="one that runs already: rediss://host:port")
    parts.add_argument("--cache-bytes", type=_bytes, help="of the cache, such as 64gb (half of what is free)")
    parts.add_argument("--data-cpus", type=int, help="CPUs of a data host for functions (all)")
    parts.add_argument(
        "--trainer-cpus", type=_cpus, help="CPUs of a training host for functions: a number, or spare (0)"
    )
    parts.add_argument("--ranks-per-host", type=int, help="ranks on a training host (one for each GPU)")
    parts.add_argument(
        "--no-torchrun",
        dest="torchrun",
        action="store_const",
        const=False,
        help="run the command itself, with MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK and NPROC_PER_NODE",
    )
    for name, what in (
        ("control", "the launchers' own line"),
        ("coordinator", "the coordinator"),
        ("cache", "the cache"),
        ("ray", "Ray's head"),
        ("master", "torchrun's rendezvous, on the first training host"),
    ):
        default = getattr(LaunchSettings(), f"{name}_port")
        parts.add_argument(f"--{name}-port", type=int, help=f"port of {what} ({default})")
    bounds = parser.add_argument_group("bounds")
    bounds.add_argument(
        "--lost-data-hosts",
        type=int,
        help="so many, the first not counted, may be lost before the run ends (0)",
    )
    bounds.add_argument("--start-wait-s", type=float, help="for hosts and services to appear (600)")
    bounds.add_argument("--stop-wait-s", type=float, help="for training to end when it is asked to (75)")
    bounds.add_argument("--silence-s", type=float, help="a host silent for so long is lost (30)")
    parser.add_argument(
        "--insecure",
        action="store_const",
        const=True,
        help="without TLS and tokens beyond this machine: for networks that nobody else can reach",
    )
    parser.add_argument("--config-dir", default=_CONFIG, help=f"where SageMaker tells of the job ({_CONFIG})")
    parser.add_argument(
        "--failure-file",
        default="",
        help=f"where the reason of a failure goes ({_FAILURE}, if that folder exists)",
    )
    parser.add_argument("--log-level", default="INFO", help="DEBUG, INFO, WARNING or ERROR (INFO)")
    parser.add_argument("command", nargs="+", help="the training script and its arguments, after --")
    return parser


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text, "--cache-bytes")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _cpus(text: str) -> int:
    if text == "spare":
        return SPARE
    if not text.isdecimal():
        msg = f"a number of CPUs, or spare; not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _cluster(given: argparse.Namespace, environment: Mapping[str, str]) -> Cluster:
    if given.data_hosts or given.training_hosts:
        current = given.host or environment.get("SM_CURRENT_HOST", "")
        return cluster_of_flags(given.data_hosts, given.training_hosts, current)
    cluster = cluster_of_sagemaker(
        {**environment, **({"SM_CURRENT_HOST": given.host} if given.host else {})},
        Path(given.config_dir),
        data_group=given.data_group,
        training_group=given.training_group,
    )
    if cluster is None:
        msg = (
            "no hosts: name them by --data-hosts, --training-hosts and --host, or by SageMaker's variables "
            f"(SM_HOSTS, SM_CURRENT_HOST, SM_RESOURCE_CONFIG); there is nothing in {given.config_dir} either"
        )
        raise ConfigError(msg)
    return cluster


def _run(given: argparse.Namespace, environment: Mapping[str, str]) -> Verdict:
    try:
        cluster = _cluster(given, environment)
        names = {field.name for field in fields(LaunchSettings)}
        told = {name: value for name, value in vars(given).items() if name in names and value is not None}
        settings = LaunchSettings(**told)
        command = [*given.command, *words_of_hyperparameters(environment, Path(given.config_dir))]
        logging.basicConfig(
            level=given.log_level.upper(),
            format=f"%(asctime)s launcher {cluster.current}: %(message)s",
            stream=sys.stderr,
            force=True,
        )
        keep_secrets_out_of_logs()
        _log.info(
            "data hosts: %s; training hosts: %s; the leader is %s",
            ", ".join(cluster.data_hosts) or "none",
            ", ".join(cluster.training_hosts),
            cluster.leader,
        )
        return asyncio.run(run_host(cluster, settings, environment, command))
    except ConfigError as error:
        return Verdict(EXIT_WRONG_SETTINGS, str(error))
    except SuperError as error:
        return Verdict(1, str(error))


def _write_failure(given: argparse.Namespace, reason: str) -> None:
    file = Path(given.failure_file or _FAILURE)
    if not given.failure_file and not file.parent.is_dir():
        return
    try:
        file.write_text(reason[:_FAILURE_CHARACTERS] + "\n", encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"infra.launcher: the reason cannot be written to {file}: {error}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and do this host's part; the exit code."""
    given = _parser().parse_args(argv)
    verdict = _run(given, os.environ)
    if verdict.code:
        _write_failure(given, verdict.reason)
        sys.stderr.write(f"infra.launcher: {verdict.reason}\n")
    return verdict.code


if __name__ == "__main__":
    sys.exit(main())
