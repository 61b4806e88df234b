"""Health check for containers: ``python -m superdl.coordinator.probe [address]``.

The exit code is 0 if the coordinator is serving and 1 if it is not. It is 2 if that cannot be checked,
because the coordinator uses TLS or is not on this machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from superdl.coordinator.server.trust import TrustSettings, check_listen_address, leaves_this_machine
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT_S = 3.0


def probe(address: str) -> str:
    """Return the reason why the coordinator is not serving, or an empty string if it is."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    # A proxy from the environment cannot reach this machine's loopback addresses.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            response = check(
                health_pb2.HealthCheckRequest(service="super.v1.Coordinator"), timeout=_TIMEOUT_S
            )
        except grpc.RpcError as error:
            return f"{error.code().name.lower()}: {error.details()}"
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    return "" if status == "SERVING" else f"its status is {status}"


def _refusal(address: str, *, speaks_tls: bool) -> str:
    """Return the reason why an address cannot be checked, or an empty string if it can."""
    try:
        check_listen_address(address, "the address")
    except ConfigError as error:
        return str(error)
    if speaks_tls:
        return "it uses TLS"
    return "it is not a loopback address" if leaves_this_machine(address) else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and check the coordinator."""
    parser = argparse.ArgumentParser(
        prog="python -m superdl.coordinator.probe",
        description="Check whether a coordinator on this machine is serving.",
    )
    forms = "host:port or unix:/path (SUPER_HEALTH_LISTEN, SUPER_LISTEN)"
    parser.add_argument("address", nargs="?", help=forms)
    # Prefer the health service's address, because the probe does not support TLS.
    given = parser.parse_args(argv).address or os.environ.get("SUPER_HEALTH_LISTEN", "")
    address = given or os.environ.get("SUPER_LISTEN", "") or TrustSettings.listen
    if given.startswith(("0.0.0.0:", "[::]:")):  # all addresses of this machine, including loopback
        address = f"127.0.0.1:{given.rpartition(':')[2]}"
    reason = _refusal(address, speaks_tls=not given and bool(os.environ.get("SUPER_TLS_CERT")))
    if reason:
        sys.stderr.write(
            f"coordinator.probe: cannot check the health of {address}: {reason}. Set SUPER_HEALTH_LISTEN to "
            "127.0.0.1:port or unix:/path for both the coordinator and the probe\n"
        )
        return 2
    fault = probe(address)
    sys.stdout.write(f"the coordinator at {address} {f'does not serve: {fault}' if fault else 'serves'}\n")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
