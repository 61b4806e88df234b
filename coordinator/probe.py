"""Health check for containers: ``python -m superdl.coordinator.probe [address]``.

Exit code: 0 if the coordinator serves, 1 if not, 2 if it cannot be asked (TLS, or
not on this machine).
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
    """Return an empty text if the coordinator serves, else what is wrong."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    # A proxy of the environment cannot reach this machine's loopback.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = health_pb2_grpc.HealthStub(channel).Check
        try:
            answer = ask(health_pb2.HealthCheckRequest(service="super.v1.Coordinator"), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{error.code().name.lower()}: {error.details()}"
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return "" if status == "SERVING" else f"it says {status}"


def _why_not(address: str, *, speaks_tls: bool) -> str:
    """Return why an address cannot be asked; empty if it can."""
    try:
        check_listen_address(address, "its address")
    except ConfigError as error:
        return str(error)
    if speaks_tls:
        return "it speaks TLS"
    return "it is not on loopback" if leaves_this_machine(address) else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and ask."""
    parser = argparse.ArgumentParser(
        prog="python -m superdl.coordinator.probe",
        description="Ask a coordinator on this machine whether it serves.",
    )
    forms = "host:port or unix:/path (SUPER_HEALTH_LISTEN, SUPER_LISTEN)"
    parser.add_argument("address", nargs="?", help=forms)
    # The health service's own address first: the probe speaks no TLS.
    given = parser.parse_args(argv).address or os.environ.get("SUPER_HEALTH_LISTEN", "")
    address = given or os.environ.get("SUPER_LISTEN", "") or TrustSettings.listen
    if given.startswith(("0.0.0.0:", "[::]:")):  # all addresses of this machine, including loopback
        address = f"127.0.0.1:{given.rpartition(':')[2]}"
    reason = _why_not(address, speaks_tls=not given and bool(os.environ.get("SUPER_TLS_CERT")))
    if reason:
        sys.stderr.write(
            f"coordinator.probe: health cannot be asked for at {address}: {reason}; set SUPER_HEALTH_LISTEN, "
            "for the coordinator and for the probe, to 127.0.0.1:port or unix:/path\n"
        )
        return 2
    fault = probe(address)
    sys.stdout.write(f"the coordinator at {address} {f'does not serve: {fault}' if fault else 'serves'}\n")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
