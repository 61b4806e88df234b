"""``python -m infra.launcher [options] -- train.py [arguments]``: one host's part of a training run.

It starts on every host of the run, with the same options. SageMaker names the hosts, elsewhere flags do. The
exit code is training's, on every host; else it says what failed (docs/clusters.md lists them), and the reason
is the last line on stderr and in the failure file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from infra.launcher import EXIT_SERVICE_FAILED, EXIT_WRONG_SETTINGS, ExitStatus, Launch
from infra.launcher.host import Host
from infra.launcher.settings import LaunchSettings, cluster_of, parse, script_arguments
from infra.launcher.trust import check_trust, trust_of
from superdl.super_wire.encryption import insecure_in, is_loopback
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.redaction import keep_secrets_out_of_logs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.launcher.settings import Cluster

__all__ = ["main"]

_log = logging.getLogger("infra.launcher")

_FAILURE_FILE = Path("/opt/ml/output/failure")  # where SageMaker looks for the reason of a failure
_FAILURE_CHARACTERS = 1024  # of which it makes the job's FailureReason


async def _run_host(launch: Launch) -> ExitStatus:
    return await Host(launch).run()


def _run(settings: LaunchSettings, environment: Mapping[str, str]) -> ExitStatus:
    """Do this host's part until the run ends."""
    cluster = cluster_of(settings)
    command = [*settings.command, *script_arguments(settings.config_dir)]
    form = f"%(asctime)s launcher {cluster.current}: %(message)s"
    logging.basicConfig(level="INFO", format=form, stream=sys.stderr, force=True)
    keep_secrets_out_of_logs()
    data, training = ", ".join(cluster.data_hosts) or "none", ", ".join(cluster.training_hosts)
    _log.info("data hosts: %s; training hosts: %s; the leader is %s", data, training, cluster.leader)
    insecure = settings.insecure or insecure_in(environment)
    check_trust(cluster, settings, environment, insecure=insecure)
    own = {**environment, "SUPER_INSECURE": "1"} if insecure else dict(environment)
    # Its name is short, for socket paths have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="super-l-", ignore_cleanup_errors=True) as directory:
        trust, address = trust_of(cluster, own), _own_address(cluster)
        launch = Launch(cluster, settings, trust, own, command, Path(directory), address)
        return asyncio.run(_run_host(launch))


def _own_address(cluster: Cluster) -> str:
    """The IP address of this host, IPv4 where it has both.

    Raises:
        ConfigError: it has none, or one that the other hosts do not reach.
    """
    own = cluster.current
    try:
        found = socket.getaddrinfo(own, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the name of this host, {own}, cannot be resolved: {error}") from error
    address = str(min(found, key=lambda item: item[0] != socket.AF_INET)[4][0])
    if is_loopback(address) and not cluster.on_loopback and len(cluster.hosts) > 1:
        msg = (
            f"{own} is {address} on {own} itself, where the other hosts do not reach it: name hosts by "
            "their addresses, or mend /etc/hosts"
        )
        raise ConfigError(msg)
    return address


def _write_failure(named: Path | None, reason: str) -> None:
    file = named or _FAILURE_FILE
    if named or file.parent.is_dir():
        try:
            file.write_text(reason[:_FAILURE_CHARACTERS] + "\n", encoding="utf-8")
        except OSError as error:
            sys.stderr.write(f"infra.launcher: the reason cannot be written to {file}: {error}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and do this host's part; the exit code."""
    settings = LaunchSettings(failure_file=None)
    try:
        status = _run(parse(sys.argv[1:] if argv is None else argv, settings), os.environ)
    except ConfigError as error:
        status = ExitStatus(EXIT_WRONG_SETTINGS, f"{error}; see --help")
    except SuperError as error:
        status = ExitStatus(1, str(error))
    except Exception as error:  # noqa: BLE001  # its reason belongs where people look for reasons
        traceback.print_exc()
        status = ExitStatus(EXIT_SERVICE_FAILED, f"the launcher itself failed: {error!r}")
    if status.code:
        _write_failure(settings.failure_file, status.reason)
        sys.stderr.write(f"infra.launcher: {status.reason}\n")
    return status.code


if __name__ == "__main__":
    sys.exit(main())
