"""A client's credentials for a coordinator, read from the client's environment."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping


# Beyond loopback, each side needs TLS and a token, unless SUPER_INSECURE is set.
def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: a loopback address or the name ``localhost``."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def insecure_in(environment: Mapping[str, str]) -> bool:
    """Return whether ``SUPER_INSECURE`` allows unencrypted connections to other machines."""
    text = environment.get("SUPER_INSECURE", "")
    if text.lower() not in {"", "0", "false", "1", "true"}:
        raise ConfigError(f"SUPER_INSECURE must be 1 or 0, not {text[:80]!r}")
    return text.lower() in {"1", "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """A client's TLS settings. Subclasses define the peer and the environment variables."""

    peer: ClassVar[str]
    variables: ClassVar[Mapping[str, str]]

    ca_file: str = ""  # PEM bundle of trusted CAs. Defaults to the system's
    cert_file: str = ""  # the client certificate, if the peer requires one
    key_file: str = ""
    insecure: bool = False  # allow plain text beyond this machine

    @classmethod
    def tls_in(cls, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return values for the fields above, read from their variables and ``SUPER_INSECURE``."""
        files = {name: environment.get(variable, "") for name, variable in cls.variables.items()}
        if bool(files["cert_file"]) != bool(files["key_file"]):
            pair = f"{cls.variables['cert_file']} and {cls.variables['key_file']}"
            raise ConfigError(f"only one of {pair} is set: set both, or neither")
        return {**files, "insecure": insecure_in(environment)}

    def tls_context(self) -> ssl.SSLContext:
        """Return a context for TLS 1.2 or later that verifies the certificate and the host name."""
        import ssl  # not needed for plain text

        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            named = ", ".join(filter(None, (self.ca_file, self.cert_file, self.key_file)))
            raise ConfigError(
                f"the certificates for {self.peer} ({named}; set by {', '.join(self.variables.values())}) "
                f"cannot be used: {error}"
            ) from error
        return context


# Both sides refuse shorter tokens, which could be guessed.
TOKEN_CHARACTERS_MIN = 16
_TOKEN_CHARACTERS_MAX = 512  # it is sent in a header, and headers are short
_TOKEN = re.compile(rf"[A-Za-z0-9._~+/=-]{{{TOKEN_CHARACTERS_MIN},{_TOKEN_CHARACTERS_MAX}}}")
_RIGHT = re.compile(r"(team|share|priority|max_usd)=[^\s,]+")


class Token(NamedTuple):
    """A token, with the values of its rights ``team``, ``share``, ``priority`` and ``max_usd``."""

    token: str
    rights: Mapping[str, str] = MappingProxyType({})


def parse_tokens(text: str, origin: str) -> tuple[Token, ...]:
    """Parse tokens with rights such as ``team=vision``. Tokens are separated by commas or line breaks.

    Lines that begin with # are comments. Raises ``ConfigError``, which refers to the text as ``origin`` and
    never contains a token.
    """
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    entries = [entry.split() for line in lines for entry in line.split(",") if entry.strip()]
    for n, (token, *words) in enumerate(entries, 1):
        if _RIGHT.fullmatch(token):
            raise ConfigError(
                f"{origin}: token {n} of {len(entries)} begins with team=, share=, priority= or "
                "max_usd=. Write rights after their token, separated by spaces"
            )
        if not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"{origin}: token {n} of {len(entries)} has {len(token)} characters, but a token must "
                f"consist of {TOKEN_CHARACTERS_MIN} to {_TOKEN_CHARACTERS_MAX} letters, digits or the "
                "characters . _ ~ + / = - (make one with openssl rand -hex 32)"
            )
        names = [word.partition("=")[0] for word in words]
        if not all(map(_RIGHT.fullmatch, words)) or len(set(names)) < len(names):
            raise ConfigError(
                f"{origin}: token {n} of {len(entries)} may only be followed by team=NAME, share=NUMBER, "
                "priority=NUMBER and max_usd=NUMBER, each at most once. Write a second token on a line of "
                "its own"
            )
    return tuple(Token(token, dict(word.split("=", 1) for word in words)) for token, *words in entries)


def tokens_given(text: str, origin: str) -> tuple[Token, ...]:
    """Parse tokens like :func:`parse_tokens`, but refuse a non-empty text that contains no token."""
    tokens = parse_tokens(text, origin)
    if text and not tokens:
        raise ConfigError(f"{origin} is set but contains no token: set it to at least one token, or unset it")
    return tokens


def read_tokens(path: str, origin: str, *, allow_empty: bool = False) -> tuple[Token, ...]:
    """Read tokens from a file. Raises ``ConfigError`` if it contains none, unless ``allow_empty``."""
    try:
        text = Path(path).read_text("ascii")
    except (OSError, ValueError) as error:  # ValueError: UnicodeDecodeError, whose text may hold a token
        reason = error.strerror if isinstance(error, OSError) else "non-ASCII characters"
        raise ConfigError(f"{origin}={path} cannot be read: {reason}") from None
    tokens = parse_tokens(text, f"{origin}={path}")
    if not (tokens or allow_empty):
        raise ConfigError(f"{origin}={path} contains no token: write one token per line")
    return tokens


@dataclass(frozen=True, slots=True)
class CoordinatorCredentials(ClientTls):
    """A client's credentials, empty if the coordinator requires none."""

    peer: ClassVar[str] = "the coordinator"
    variables: ClassVar[Mapping[str, str]] = {
        "ca_file": "SUPER_COORDINATOR_CA_FILE",
        "cert_file": "SUPER_COORDINATOR_CERT_FILE",
        "key_file": "SUPER_COORDINATOR_KEY_FILE",
    }

    token: str = field(default="", repr=False)
    token_file: str = ""
    name: str = ""  # host name in the coordinator's certificate, by default the host in its address

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> CoordinatorCredentials:
        """Read ``SUPER_TOKEN`` or ``SUPER_TOKEN_FILE``, and the variables of the other fields."""
        tokens = tokens_given(environment.get("SUPER_TOKEN", ""), "SUPER_TOKEN")
        credentials = cls(
            # A coordinator accepts several tokens. A client sends the first.
            token=tokens[0].token if tokens else "",
            token_file="" if tokens else environment.get("SUPER_TOKEN_FILE", ""),
            name=environment.get("SUPER_COORDINATOR_NAME", ""),
            **cls.tls_in(environment),
        )
        credentials.current_token()
        return credentials

    def for_grpc(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the root certificates, key and certificate for gRPC's channel credentials."""
        self.tls_context()  # raises for a bad file; gRPC itself would only fail to connect
        files = (self.ca_file or _system_authorities(), self.key_file, self.cert_file)
        roots, key, certificate = (Path(file).read_bytes() if file else None for file in files)
        return roots, key, certificate

    def current_token(self) -> str:
        """Return the current token, or an empty string if there is none."""
        if self.token or not self.token_file:
            return self.token
        # Read the file each time, because it may change.
        return read_tokens(self.token_file, "SUPER_TOKEN_FILE")[0].token

    def check_suffices(self, host: str) -> None:
        """Raise ``ConfigError`` if ``host`` is remote and no token is set, unless ``insecure`` is set."""
        if host and not is_loopback(host) and not self.insecure and not self.current_token():
            raise ConfigError(
                f"the coordinator at {host} is not on this machine, so it requires TLS and a token, but no "
                "token is set: set SUPER_TOKEN or SUPER_TOKEN_FILE, and also SUPER_COORDINATOR_CA_FILE if "
                "its certificate is from your own authority"
            )

    def encrypts(self, host: str) -> bool:
        """Return whether connections to ``host``, which is empty for a unix socket, are encrypted.

        With ``ca_file``, all TCP connections are encrypted. Without it, remote ones are, unless ``insecure``.
        """
        return bool(host) and (bool(self.ca_file) or not (is_loopback(host) or self.insecure))

    def tls_context(self) -> ssl.SSLContext:
        """Return the context from :meth:`ClientTls.tls_context`, configured for HTTP/2."""
        context = ClientTls.tls_context(self)
        context.set_alpn_protocols(["h2"])
        return context


def _system_authorities() -> str:
    """Return the path of the operating system's CA bundle, or an empty string. gRPC would use its own."""
    import ssl  # not needed for plain text

    paths = ssl.get_default_verify_paths()
    files = (paths.cafile, f"{paths.capath}/ca-certificates.crt" if paths.capath else None)
    return next((file for file in files if file and Path(file).is_file()), "")
