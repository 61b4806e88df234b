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

__all__ = ["Pair", "days_left", "main", "make_secrets", "new_authority", "sign"]

_AUTHORITY_DAYS = 3650
_BACKDATED = dt.timedelta(minutes=5)  # clocks differ
_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
_VALID_DAYS = 397
_RENEW_DAYS = 30
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM texts."""

    cert: str
    key: str = field(repr=False)


def new_authority(name: str) -> Pair:
    """An authority that may sign servers and clients, and no other authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    limits = x509.BasicConstraints(ca=True, path_length=0)
    subject = _named(name)
    return _signed(subject, key, subject, key, _AUTHORITY_DAYS, limits, _usage("key_cert_sign", "crl_sign"))


def sign(authority: Pair, name: str, *, days: int, hosts: tuple[str, ...] = ()) -> Pair:
    """A certificate of the authority's: a server's if it has hosts, else a client's."""
    signer = serialization.load_pem_private_key(authority.key.encode(), password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        msg = "the authority's key is not of an elliptic curve: it was not made here"
        raise TypeError(msg)
    limits = x509.BasicConstraints(ca=False, path_length=None)
    side = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    more: list[x509.ExtensionType] = [x509.ExtendedKeyUsage([side])]
    if hosts:
        more.append(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]))
    key, issuer = ec.generate_private_key(ec.SECP256R1()), _loaded(authority.cert).subject
    return _signed(_named(name), key, issuer, signer, days, limits, _usage("digital_signature"), *more)


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    *extensions: x509.ExtensionType,
) -> Pair:
    """A certificate of these extensions with its key."""
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


def days_left(cert: str) -> float:
    """Days until a certificate runs out; below 0 if it has."""
    return (_loaded(cert).not_valid_after_utc - dt.datetime.now(dt.UTC)) / dt.timedelta(days=1)


def names_of(cert: str) -> tuple[str, ...]:
    """The host names that a certificate is for."""
    found = _loaded(cert).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return tuple(found.value.get_values_for_type(x509.DNSName))


def signed_by(cert: str, authorities: str) -> bool:
    """Whether one of these authorities, PEM texts one after the other, signed the certificate."""
    issuers = x509.load_pem_x509_certificates(authorities.encode())
    return any(_is_signed(_loaded(cert), issuer) for issuer in issuers)


def _is_signed(cert: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError):  # another key, another name, another kind of key
        return False
    return True


def _usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in uses for use in _USES})


def _loaded(cert: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(cert.encode())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


class Vault:
    """The secrets of one stack: JSON objects of texts."""

    def __init__(self, client: Any, stack: str) -> None:
        self._client = client
        self._stack = stack

    def read(self, name: str) -> dict[str, str]:
        """What a secret says; nothing if there is none. One that waits for its deletion is restored."""
        full = f"{self._stack}/{name}"
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
        full, text = f"{self._stack}/{name}", json.dumps(content)
        try:
            self._client.put_secret_value(SecretId=full, SecretString=text)
            _say(f"renewed {full}")
        except self._client.exceptions.ResourceNotFoundException:
            tags = [{"Key": TAG, "Value": self._stack}]
            self._client.create_secret(Name=full, Description=description, SecretString=text, Tags=tags)
            _say(f"made {full}")

    def arn(self, name: str) -> str:
        """The ARN of a secret."""
        found: str = self._client.describe_secret(SecretId=f"{self._stack}/{name}")["ARN"]
        return found


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs, and all who are trusted: itself, and those before it until they are retired."""

    pair: Pair
    trusted: str


def make_secrets(vault: Vault, stack: str, arguments: argparse.Namespace) -> dict[str, str]:
    """Make what is missing or asked for; give the stack's parameters."""
    authority = _authority(vault, stack, new=arguments.new_authority, retire=arguments.retire_authority)
    renew, host = arguments.renew, f"coordinator.{stack}.internal"
    hosts = (host, "localhost")
    _certificate(vault, authority, "coordinator", host, renew=renew, trusts="client_ca", hosts=hosts)
    is_mutual = arguments.mutual_tls or bool(vault.read("client"))
    if is_mutual:
        _certificate(vault, authority, "client", "SUPER trainer", renew=renew, trusts="ca")
    _token(vault, rotate=arguments.rotate_token, retire=arguments.retire_token)
    return {
        "CoordinatorSecretArn": vault.arn("coordinator"),
        "TokenSecretArn": vault.arn("token"),
        "CaSecretArn": vault.arn("ca"),
        "ClientSecretArn": vault.arn("client") if is_mutual else "",
    }


def _authority(vault: Vault, stack: str, *, new: bool, retire: bool) -> Authority:
    kept = vault.read("authority")
    wanted = dict(kept)
    if new or not kept:
        made = new_authority(f"SUPER {stack}")
        wanted = {"cert": made.cert, "key": made.key}
        if kept:
            wanted["former"] = kept["cert"] + kept.get("former", "")
    elif retire:
        wanted.pop("former", None)
    if wanted != kept:
        vault.write("authority", wanted, "SUPER: the private authority. Keep it to who renews certificates")
    if days_left(wanted["cert"]) < _VALID_DAYS:
        _say(
            f"the authority runs out in {days_left(wanted['cert']):.0f} days: run this with --new-authority, "
            "and see 'Rotate' in docs/deploy.md for the steps after it"
        )
    trusted = wanted["cert"] + wanted.get("former", "")
    if vault.read("ca").get("cert") != trusted:
        vault.write("ca", {"cert": trusted}, "SUPER: the authority's certificate, which is no secret")
    return Authority(Pair(wanted["cert"], wanted["key"]), trusted)


def _certificate(
    vault: Vault,
    authority: Authority,
    secret: str,
    name: str,
    *,
    renew: bool,
    trusts: str,
    hosts: tuple[str, ...] = (),
) -> None:
    """Keep a certificate in a secret, or make it: one that a former authority signed may stay.

    Args:
        vault: where secrets are.
        authority: who signs.
        secret: the secret's name.
        name: the certificate's.
        renew: make it in any case.
        trusts: the field of the secret that has the trusted authorities.
        hosts: of a server; the certificate must be for the first.
    """
    kept = vault.read(secret)
    is_good = (
        kept
        and not renew
        and days_left(kept["cert"]) >= _RENEW_DAYS
        and signed_by(kept["cert"], authority.trusted)
        and (not hosts or hosts[0] in names_of(kept["cert"]))
    )
    made = None if is_good else sign(authority.pair, name, days=_VALID_DAYS, hosts=hosts)
    pair = made or Pair(kept["cert"], kept["key"])
    content = {"cert": pair.cert, "key": pair.key, trusts: authority.trusted}
    if content != kept:
        whose = "coordinator's" if hosts else "trainers'"
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
    authorities = parser.add_mutually_exclusive_group()
    authorities.add_argument(
        "--new-authority",
        action="store_true",
        help="make a new authority; the one before is trusted beside it, and its certificates stay",
    )
    authorities.add_argument(
        "--retire-authority",
        action="store_true",
        help="trust the newest authority alone; make certificates of others again",
    )
    tokens = parser.add_mutually_exclusive_group()
    tokens.add_argument(
        "--rotate-token", action="store_true", help="make a new token; those before are accepted beside it"
    )
    tokens.add_argument("--retire-token", action="store_true", help="accept the newest token alone")
    arguments = parser.parse_args(argv)
    try:
        client = session_in(arguments.region).client("secretsmanager")
        parameters = make_secrets(Vault(client, arguments.stack), arguments.stack, arguments)
    except NoRegionError:
        _say(NO_REGION)
        return 1
    except (BotoCoreError, ClientError) as error:
        _say(f"Secrets Manager: {error}")
        return 1
    print(" ".join(f"{name}={value}" for name, value in parameters.items() if value))
    return 0


if __name__ == "__main__":
    sys.exit(main())
