"""``python -m infra.make_secrets --stack NAME``: certificates and a token for a stack, into Secrets Manager.

It makes what is missing or runs out within a month, and leaves alone what is there, so run it at any time. On
standard output it prints the stack's parameters, for ``sam deploy --parameter-overrides``; on standard error
what it did. Keys are of the curve P-256, made in memory, and go nowhere else.

Secrets: ``NAME/authority`` (the private authority with its key; nobody but who renews may read it),
``NAME/ca`` (its certificate alone), ``NAME/coordinator``, ``NAME/token`` and, with ``--mutual-tls``,
``NAME/client``, which is kept up from then on. The cache's passwords are the stack's own.

Exit codes: 0 done, 1 AWS refused.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import secrets
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError, NoRegionError
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from infra import NO_REGION, TAG, session_in, stack_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Pair", "days_left", "main", "new_authority", "sign"]

_AUTHORITY_DAYS = 3650
_VALID_DAYS = 397
_RENEW_DAYS = 30
_BACKDATED = dt.timedelta(minutes=5)  # clocks differ
_TOKEN_BYTES = 32
_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM texts."""

    cert: str
    key: str = field(repr=False)


def new_authority(name: str) -> Pair:
    """An authority that may sign servers and clients, and no other authority."""
    limits = x509.BasicConstraints(ca=True, path_length=0)
    return _signed(name, None, _AUTHORITY_DAYS, limits, _usage("key_cert_sign", "crl_sign"))


def sign(authority: Pair, name: str, *, days: int, hosts: tuple[str, ...] = ()) -> Pair:
    """A certificate of the authority's: a server's if it has hosts, else a client's."""
    side = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    more: list[x509.ExtensionType] = [x509.ExtendedKeyUsage([side])]
    if hosts:
        more.append(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]))
    limits = x509.BasicConstraints(ca=False, path_length=None)
    return _signed(name, authority, days, limits, _usage("digital_signature"), *more)


def _signed(name: str, authority: Pair | None, days: int, *extensions: x509.ExtensionType) -> Pair:
    """A certificate of these extensions with its key; without an authority it signs itself."""
    key = signer = ec.generate_private_key(ec.SECP256R1())
    subject = issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    if authority is not None:
        found = serialization.load_pem_private_key(authority.key.encode(), password=None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise TypeError("the authority's key is not of an elliptic curve: it was not made here")
        signer, issuer = found, _loaded(authority.cert).subject
    now, public = dt.datetime.now(dt.UTC), key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    for extension in extensions:
        is_critical = isinstance(extension, (x509.BasicConstraints, x509.KeyUsage))
        builder = builder.add_extension(extension, critical=is_critical)
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(builder.sign(signer, hashes.SHA256()).public_bytes(pem).decode(), secret.decode())


def _usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in uses for use in _USES})


def _loaded(cert: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(cert.encode())


def days_left(cert: str) -> float:
    """Days until a certificate runs out; below 0 if it has."""
    return (_loaded(cert).not_valid_after_utc - dt.datetime.now(dt.UTC)) / dt.timedelta(days=1)


def _is_good(cert: str, authority: str, host: str) -> bool:
    """Whether a certificate lasts, is the authority's and, for a server, is for the host."""
    loaded = _loaded(cert)
    try:
        loaded.verify_directly_issued_by(_loaded(authority))
    except (InvalidSignature, ValueError, TypeError):  # another key, another name, another kind of key
        return False
    names = []
    if host:
        found = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = found.value.get_values_for_type(x509.DNSName)
    return days_left(cert) >= _RENEW_DAYS and (not host or host in names)


class Vault:
    """The secrets of one stack: JSON objects of texts."""

    def __init__(self, client: Any, stack: str) -> None:
        self._client = client
        self.stack = stack

    def read(self, name: str) -> dict[str, str]:
        """What a secret says; nothing if there is none. One that waits for its deletion is restored."""
        full = f"{self.stack}/{name}"
        try:
            if self._client.describe_secret(SecretId=full).get("DeletedDate"):
                self._client.restore_secret(SecretId=full)
                _say(f"restored {full}, which was marked for deletion")
            found: dict[str, str] = json.loads(self._client.get_secret_value(SecretId=full)["SecretString"])
        except self._client.exceptions.ResourceNotFoundException:
            return {}
        return found

    def write(self, name: str, content: Mapping[str, str], description: str) -> None:
        """Make a secret, or give it a new version."""
        full, text = f"{self.stack}/{name}", json.dumps(content)
        try:
            self._client.put_secret_value(SecretId=full, SecretString=text)
            _say(f"renewed {full}")
        except self._client.exceptions.ResourceNotFoundException:
            tags = [{"Key": TAG, "Value": self.stack}]
            self._client.create_secret(Name=full, Description=description, SecretString=text, Tags=tags)
            _say(f"made {full}")

    def arn(self, name: str) -> str:
        """The ARN of a secret."""
        return str(self._client.describe_secret(SecretId=f"{self.stack}/{name}")["ARN"])


def _make(vault: Vault, arguments: argparse.Namespace) -> dict[str, str]:
    """Make what is missing or asked for; give the stack's parameters."""
    authority, renew = _authority(vault), arguments.renew
    _certificate(vault, authority, "coordinator", f"coordinator.{vault.stack}.internal", renew=renew)
    is_mutual = arguments.mutual_tls or bool(vault.read("client"))
    if is_mutual:
        _certificate(vault, authority, "client", "", renew=renew)
    _token(vault, rotate=arguments.rotate_token, retire=arguments.retire_token)
    named = {"CoordinatorSecretArn": "coordinator", "TokenSecretArn": "token", "CaSecretArn": "ca"}
    named |= {"ClientSecretArn": "client"} if is_mutual else {}
    return {parameter: vault.arn(name) for parameter, name in named.items()}


def _authority(vault: Vault) -> Pair:
    kept = vault.read("authority")
    authority = Pair(kept["cert"], kept["key"]) if kept else new_authority(f"SUPER {vault.stack}")
    if not kept:
        content = {"cert": authority.cert, "key": authority.key}
        vault.write("authority", content, "SUPER: the private authority. Keep it to who renews certificates")
    if days_left(authority.cert) < _VALID_DAYS:
        _say(
            f"the authority runs out in {days_left(authority.cert):.0f} days: delete the secret "
            f"{vault.stack}/authority for good, run this again and restart coordinator and trainers together"
        )
    if vault.read("ca") != {"cert": authority.cert}:
        vault.write("ca", {"cert": authority.cert}, "SUPER: the authority's certificate, which is no secret")
    return authority


def _certificate(vault: Vault, authority: Pair, secret: str, host: str, *, renew: bool) -> None:
    """Keep the certificate in a secret, a server's with its host or a client's, or make another."""
    kept = vault.read(secret)
    if kept and not renew and _is_good(kept["cert"], authority.cert, host):
        return
    hosts = (host, "localhost") if host else ()
    made = sign(authority, host or "SUPER trainer", days=_VALID_DAYS, hosts=hosts)
    content = {"cert": made.cert, "key": made.key, "client_ca" if host else "ca": authority.cert}
    whose = "coordinator's" if host else "trainers'"
    vault.write(secret, content, f"SUPER: the {whose} certificate and key")


def _token(vault: Vault, *, rotate: bool, retire: bool) -> None:
    kept = vault.read("token")
    if rotate or not kept:
        made = secrets.token_urlsafe(_TOKEN_BYTES)
        accepted = f"{made},{kept['accepted']}" if kept else made
        vault.write("token", {"token": made, "accepted": accepted}, "SUPER: the trainers' token")
    elif retire and kept["accepted"] != kept["token"]:
        vault.write("token", {"token": kept["token"], "accepted": kept["token"]}, "")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, make the secrets, print the parameters."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.make_secrets", description="Certificates and a token for a stack of SUPER."
    )
    parser.add_argument("--stack", type=stack_name, required=True, help="the name that the stack will have")
    parser.add_argument("--region", help="its region (else the environment's)")
    parser.add_argument("--mutual-tls", action="store_true", help="make a certificate for trainers, too")
    parser.add_argument("--renew", action="store_true", help="make new certificates now")
    add = parser.add_mutually_exclusive_group().add_argument
    add("--rotate-token", action="store_true", help="make a token; those before are accepted beside it")
    add("--retire-token", action="store_true", help="accept the newest token alone")
    arguments = parser.parse_args(argv)
    try:
        client = session_in(arguments.region).client("secretsmanager")
        parameters = _make(Vault(client, arguments.stack), arguments)
    except NoRegionError:
        _say(NO_REGION)
        return 1
    except (BotoCoreError, ClientError) as error:
        _say(f"Secrets Manager: {error}")
        return 1
    print(" ".join(f"{name}={value}" for name, value in parameters.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
