"""TLS: which connections need it, and a client's trusted CAs and certificate.

A host beyond this machine needs TLS and a token, on every side of a connection. ``SUPER_INSECURE``, which
each side reads from its own environment, lets a side do without.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

_TRUTHS = {"": False, "0": False, "false": False, "1": True, "true": True}


def is_loopback(host: str) -> bool:
    """Report whether a host is this machine; of names only ``localhost`` is."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def insecure_in(environment: Mapping[str, str]) -> bool:
    """Report whether ``SUPER_INSECURE`` allows plain text beyond this machine.

    Raises:
        ConfigError: it is neither yes nor no.
    """
    text = environment.get("SUPER_INSECURE", "")
    try:
        return _TRUTHS[text.lower()]
    except KeyError:
        raise ConfigError(f"SUPER_INSECURE is 1 or 0; not {text[:80]!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """A client's TLS settings from its environment; a subclass names the peer and the variables.

    ``ca_file`` is a PEM file of the CAs to trust for the peer's certificate, by default the system's.
    ``cert_file`` and ``key_file`` are a client certificate, for peers that require one. ``insecure`` allows
    plain text beyond this machine.
    """

    peer: ClassVar[str]
    variables: ClassVar[Mapping[str, str]]

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False

    @classmethod
    def tls_in(cls, environment: Mapping[str, str]) -> dict[str, Any]:
        """Read the fields above from their variables and ``SUPER_INSECURE``.

        Raises:
            ConfigError: a certificate without a key, or a key without a certificate.
        """
        files = {name: environment.get(variable, "") for name, variable in cls.variables.items()}
        if bool(files["cert_file"]) != bool(files["key_file"]):
            pair = f"{cls.variables['cert_file']} and {cls.variables['key_file']}"
            raise ConfigError(f"{pair} belong together: set both, or neither")
        return {**files, "insecure": insecure_in(environment)}

    def tls_context(self) -> ssl.SSLContext:
        """Return a context that verifies the peer's certificate and host name, TLS 1.2 or later.

        Raises:
            ConfigError: a file cannot be read or is no PEM file.
        """
        import ssl  # not needed for plain text

        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            named = ", ".join(filter(None, (self.ca_file, self.cert_file, self.key_file)))
            raise ConfigError(
                f"the certificates for {self.peer} ({named}; {', '.join(self.variables.values())} name them) "
                f"cannot be used: {error}"
            ) from error
        return context
