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
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from infra.launcher.cluster import Cluster, cluster_of_flags, cluster_of_sagemaker
from infra.launcher.host import run_host
from infra.launcher.hyperparameters import words_of_hyperparameters
from infra.launcher.options import FAILURE, parse, settings_of
from infra.launcher.verdicts import EXIT_SERVICE_FAILED, EXIT_WRONG_SETTINGS, Verdict
from superdl.super_wire.discretion import keep_secrets_out_of_logs
from superdl.super_wire.errors import ConfigError, SuperError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["main"]

_log = logging.getLogger("infra.launcher")

_FAILURE_CHARACTERS = 1024  # of which SageMaker makes the job's FailureReason


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


def _command(given: argparse.Namespace, environment: Mapping[str, str]) -> list[str]:
    command = [*given.command, *words_of_hyperparameters(environment, Path(given.config_dir))]
    if any("\0" in word for word in command):
        msg = "a hyper-parameter or argument of the script has a NUL, which no program can be given"
        raise ConfigError(msg)
    return command


def _run(given: argparse.Namespace, environment: Mapping[str, str]) -> Verdict:
    try:
        cluster = _cluster(given, environment)
        settings = settings_of(given)
        command = _command(given, environment)
        logging.basicConfig(
            level=given.log_level,
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


def _write_failure(named: str, reason: str) -> None:
    file = Path(named or FAILURE)
    if not named and not file.parent.is_dir():
        return
    try:
        file.write_text(reason[:_FAILURE_CHARACTERS] + "\n", encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"infra.launcher: the reason cannot be written to {file}: {error}\n")


def _named_in(arguments: Sequence[str]) -> str:
    """The failure file among arguments that do not fit."""
    finder = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    finder.add_argument("--failure-file", default="", nargs="?", const="")
    return str(finder.parse_known_args(list(arguments))[0].failure_file)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and do this host's part; the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        given = parse(arguments)
    except ConfigError as error:
        verdict, file = Verdict(EXIT_WRONG_SETTINGS, f"{error}; see --help"), _named_in(arguments)
    else:
        file = given.failure_file
        try:
            verdict = _run(given, os.environ)
        except Exception as error:  # noqa: BLE001  # its reason is to be where reasons are looked for
            traceback.print_exc()
            verdict = Verdict(EXIT_SERVICE_FAILED, f"the launcher itself failed: {error!r}")
    if verdict.code:
        _write_failure(file, verdict.reason)
        sys.stderr.write(f"infra.launcher: {verdict.reason}\n")
    return verdict.code


if __name__ == "__main__":
    sys.exit(main())
