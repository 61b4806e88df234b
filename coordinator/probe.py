"""``python -m superdl.coordinator.probe [address]``: asks a coordinator on this machine whether it serves.

It is what a container's health check runs. It asks gRPC's health service at the address that is named, else
at ``SUPER_HEALTH_LISTEN``, else at ``SUPER_LISTEN``; without TLS, and so on loopback or a unix socket only.
Exit code 0 if it serves, 1 if not, 2 if it cannot be asked so; one sentence says which. The health service
itself is :mod:`superdl.coordinator.server.listening`'s.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from superdl.coordinator.server.settings import Settings
from superdl.super_wire.encryption import is_loopback
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["address_to_ask", "main", "probe"]

_TIMEOUT_S = 3.0
_SERVICE = "super.v1.Coordinator"


def address_to_ask(environment: Mapping[str, str], given: str = "") -> str:
    """The address of the health service.

    Raises:
        ConfigError: none is on this machine and without TLS.
    """
    address = given or environment.get("SUPER_HEALTH_LISTEN", "")
    if not address:
        address = environment.get("SUPER_LISTEN", "") or Settings().listen
        if environment.get("SUPER_TLS_CERT"):
            raise _cannot_ask(address, "it speaks TLS")
    host, colon, port = address.rpartition(":")
    if not address.startswith("unix:/"):
        if not (colon and port.isdecimal()):
            raise _cannot_ask(address, "it is neither host:port nor unix:/path")
        if not is_loopback(host.strip("[]")):
            raise _cannot_ask(address, "it is not on loopback")
    return address


def _cannot_ask(address: str, why: str) -> ConfigError:
    return ConfigError(
        f"health cannot be asked for at {address}: {why}; set SUPER_HEALTH_LISTEN, for the coordinator and "
        "for the probe, to 127.0.0.1:port or unix:/path"
    )


def probe(address: str) -> str:
    """Ask; the empty text if the coordinator serves, else what is wrong."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    # A proxy of the environment is no way to this machine.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = health_pb2_grpc.HealthStub(channel).Check
        try:
            answer = ask(health_pb2.HealthCheckRequest(service=_SERVICE), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{error.code().name.lower()}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return f"it says {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and ask."""
    parser = argparse.ArgumentParser(
        prog="python -m superdl.coordinator.probe",
        description="Ask a coordinator on this machine whether it serves.",
    )
    parser.add_argument(
        "address", nargs="?", default="", help="host:port or unix:/path (SUPER_HEALTH_LISTEN, SUPER_LISTEN)"
    )
    try:
        address = address_to_ask(os.environ, parser.parse_args(argv).address)
    except ConfigError as error:
        sys.stderr.write(f"coordinator.probe: {error}\n")
        return 2
    fault = probe(address)
    sys.stdout.write(f"the coordinator at {address} {f'does not serve: {fault}' if fault else 'serves'}\n")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
