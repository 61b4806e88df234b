"""Which connections need TLS, and the TLS of a client: whom it believes and what it shows.

A host beyond this machine needs TLS and a token, on every side of a connection. ``SUPER_INSECURE``, which
each side reads from its own environment, allows a side to do without.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

__all__ = ["ClientTls", "insecure_in", "is_loopback"]

_TRUTHS = {"": False, "0": False, "false": False, "1": True, "true": True}


def is_loopback(host: str) -> bool:
    """Whether a host is this machine; of names only ``localhost`` is, others may be resolved again."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def insecure_in(environment: Mapping[str, str]) -> bool:
    """Whether ``SUPER_INSECURE`` allows plain text beyond this machine.

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
    """What a client's environment says of TLS; a subclass names the peer and the variables.

    ``ca_file`` is a PEM file of the authorities that the peer's certificate must come from, the system's if
    it is empty. ``cert_file`` and ``key_file`` are a client certificate, for peers that want one.
    ``insecure`` allows plain text beyond this machine.
    """

    peer: ClassVar[str]
    variables: ClassVar[Mapping[str, str]]

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False

    @classmethod
    def tls_in(cls, environment: Mapping[str, str]) -> dict[str, Any]:
        """The fields above, out of their variables and ``SUPER_INSECURE``.

        Raises:
            ConfigError: a certificate without a key, or a key without a certificate.
        """
        files = {name: environment.get(variable, "") for name, variable in cls.variables.items()}
        if bool(files["cert_file"]) != bool(files["key_file"]):
            pair = f"{cls.variables['cert_file']} and {cls.variables['key_file']}"
            raise ConfigError(f"{pair} belong together: set both, or neither")
        return {**files, "insecure": insecure_in(environment)}

    def tls_context(self) -> ssl.SSLContext:
        """Verifies the peer's certificate and host name, TLS 1.2 or later.

        Raises:
            ConfigError: a file cannot be read or is no PEM file.
        """
        import ssl  # who speaks in plain text needs none of it

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
