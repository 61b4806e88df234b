"""A private authority and the certificates it signs, as PEM texts that never touch a disk.

Keys are P-256. Where the texts are kept is :mod:`infra.make_secrets`'s.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Pair", "days_left", "names_of", "new_authority", "sign", "signed_by"]

_AUTHORITY_DAYS = 3650
_BACKDATED = dt.timedelta(minutes=5)  # clocks differ
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
_SPEAKS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM texts."""

    cert: str
    key: str = field(repr=False)


def new_authority(name: str) -> Pair:
    """An authority that may sign servers and clients, and no other authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    builder = _builder(subject, subject, key.public_key(), key.public_key(), _AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_SIGNS, critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def sign(authority: Pair, name: str, *, days: int, hosts: tuple[str, ...] = ()) -> Pair:
    """A certificate of the authority's: a server's if it has hosts, else a client's."""
    signer = serialization.load_pem_private_key(authority.key.encode(), password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        msg = "the authority's key is not of an elliptic curve: it was not made here"
        raise TypeError(msg)
    issuer = _loaded(authority.cert)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_named(name), issuer.subject, key.public_key(), signer.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_SPEAKS, critical=True)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if hosts:
        alternatives = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        builder = builder.add_extension(alternatives, critical=False)
    return _pair(builder.sign(signer, hashes.SHA256()), key)


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


def _loaded(cert: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(cert.encode())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuers: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuers), critical=False)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )
