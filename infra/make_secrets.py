"""``python -m infra.make_secrets --stack NAME``: store certificates and a token in Secrets Manager.

Creates the secrets that are missing or expire within a month, and prints the parameters for
``sam deploy --parameter-overrides``. Exit codes: 0 success, 1 AWS refused.

Secrets: ``NAME/authority`` (with its key, only for those who renew certificates), ``NAME/ca`` (just the
certificate), ``NAME/coordinator``, ``NAME/token`` and, with ``--mutual-tls``, ``NAME/client``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import secrets
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trustme
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from infra import NO_REGION, TAG, session_in, stack_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAME = "SUPER"
VALID_DAYS = 397
_RENEW_DAYS = 30
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM."""

    cert: str
    key: str = field(repr=False)


def new_authority(name: str) -> Pair:
    """Return a CA that may sign certificates, but not other CAs."""
    # trustme generates the keys, on the curve P-256, in memory.
    authority = trustme.CA(path_length=0, organization_name=_NAME, organization_unit_name=name)
    return Pair(authority.cert_pem.bytes().decode(), authority.private_key_pem.bytes().decode())


def sign(authority: Pair, host: str, *others: str, days: int) -> Pair:
    """Return a certificate for these hosts, signed by the CA."""
    signer = trustme.CA.from_pem(authority.cert.encode(), authority.key.encode())
    until = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    certificate = signer.issue_cert(
        host, *others, not_after=until, common_name=host[:64], organization_name=_NAME
    )
    return Pair(certificate.cert_chain_pems[0].bytes().decode(), certificate.private_key_pem.bytes().decode())


def days_left(cert: str) -> float:
    """Return the number of days until a certificate expires, which is negative if it already has."""
    expires = x509.load_pem_x509_certificate(cert.encode()).not_valid_after_utc
    return (expires - dt.datetime.now(dt.UTC)) / dt.timedelta(days=1)


def _is_good(cert: str, authority: str, host: str) -> bool:
    """Return whether a certificate is valid for another month, signed by the CA, and issued for this host."""
    loaded, issuer = (x509.load_pem_x509_certificate(text.encode()) for text in (cert, authority))
    try:
        loaded.verify_directly_issued_by(issuer)
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound):
        return False  # wrong key, name or kind of key, or no host
    return days_left(cert) >= _RENEW_DAYS and host in names.value.get_values_for_type(x509.DNSName)


class Vault:
    """The secrets of one stack. Each secret is a JSON object of strings."""

    def __init__(self, client: Any, stack: str) -> None:
        self._client = client
        self.stack = stack

    def read(self, name: str) -> dict[str, str]:
        """Return a secret, restoring it if it is marked for deletion, or an empty dict if it is missing."""
        full = f"{self.stack}/{name}"
        try:
            if self._client.describe_secret(SecretId=full).get("DeletedDate"):
                self._client.restore_secret(SecretId=full)
                _say(f"restored {full}, which was marked for deletion")
            content: dict[str, str] = json.loads(self._client.get_secret_value(SecretId=full)["SecretString"])
        except self._client.exceptions.ResourceNotFoundException:
            return {}
        return content

    def write(self, name: str, content: Mapping[str, str], description: str) -> None:
        """Create a secret, or add a new version of it."""
        full, text = f"{self.stack}/{name}", json.dumps(content)
        try:
            self._client.put_secret_value(SecretId=full, SecretString=text)
            _say(f"renewed {full}")
        except self._client.exceptions.ResourceNotFoundException:
            tags = [{"Key": TAG, "Value": self.stack}]
            self._client.create_secret(Name=full, Description=description, SecretString=text, Tags=tags)
            _say(f"created {full}")

    def arn(self, name: str) -> str:
        """Return the ARN of a secret."""
        return str(self._client.describe_secret(SecretId=f"{self.stack}/{name}")["ARN"])


def _make(vault: Vault, arguments: argparse.Namespace) -> dict[str, str]:
    authority, renew = _authority(vault), arguments.renew
    _certificate(vault, authority, "coordinator", renew=renew)
    # An existing client certificate is renewed from then on.
    is_mutual = arguments.mutual_tls or bool(vault.read("client"))
    if is_mutual:
        _certificate(vault, authority, "client", renew=renew)
    _token(vault, rotate=arguments.rotate_token, retire=arguments.retire_token)
    secret_names = {"CoordinatorSecretArn": "coordinator", "TokenSecretArn": "token", "CaSecretArn": "ca"}
    secret_names |= {"ClientSecretArn": "client"} if is_mutual else {}
    return {parameter: vault.arn(name) for parameter, name in secret_names.items()}


def _authority(vault: Vault) -> Pair:
    current = vault.read("authority")
    authority = Pair(current["cert"], current["key"]) if current else new_authority(f"SUPER {vault.stack}")
    if not current:
        content = {"cert": authority.cert, "key": authority.key}
        vault.write(
            "authority", content, "SUPER: the private authority, only for those who renew certificates"
        )
    # A new certificate would now outlive the CA.
    if days_left(authority.cert) < VALID_DAYS:
        _say(
            f"the authority expires in {days_left(authority.cert):.0f} days: delete the secret "
            f"{vault.stack}/authority permanently, rerun this command, and restart coordinator and trainers "
            "together"
        )
    if vault.read("ca") != {"cert": authority.cert}:
        vault.write("ca", {"cert": authority.cert}, "SUPER: the authority's certificate, which is not secret")
    return authority


def _certificate(vault: Vault, authority: Pair, secret: str, *, renew: bool) -> None:
    current, host = vault.read(secret), f"{secret}.{vault.stack}.internal"
    if current and not renew and _is_good(current["cert"], authority.cert, host):
        return
    pair = sign(authority, host, "localhost", days=VALID_DAYS)
    authorities = {"client": "ca", "coordinator": "client_ca"}
    content = {"cert": pair.cert, "key": pair.key, authorities[secret]: authority.cert}
    vault.write(secret, content, f"SUPER: certificate and key of the {secret}")


def _token(vault: Vault, *, rotate: bool, retire: bool) -> None:
    current = vault.read("token")
    if rotate or not current:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        # The previous token stays valid until all trainers have the new one.
        accepted = f"{token},{current['accepted']}" if current else token
        vault.write("token", {"token": token, "accepted": accepted}, "SUPER: the trainers' token")
    elif retire and current["accepted"] != current["token"]:
        vault.write("token", {"token": current["token"], "accepted": current["token"]}, "")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, create the secrets, and print the parameters."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.make_secrets", description="Create certificates and a token for a SUPER stack."
    )
    parser.add_argument("--stack", type=stack_name, required=True, help="name of the stack to create")
    parser.add_argument("--region", help="its region (default: from the environment)")
    parser.add_argument("--mutual-tls", action="store_true", help="also create a certificate for trainers")
    parser.add_argument("--renew", action="store_true", help="create new certificates now")
    add = parser.add_mutually_exclusive_group().add_argument
    add("--rotate-token", action="store_true", help="create a new token; earlier tokens remain valid")
    add("--retire-token", action="store_true", help="accept only the newest token")
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
