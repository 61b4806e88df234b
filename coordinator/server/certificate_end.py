"""When a certificate ends. Python's own ssl tells that only of certificates that a peer has shown.

Just enough of X.509 is read to find the date; that the certificate is one is seen by
:mod:`superdl.coordinator.server.tls`, by OpenSSL.
"""

from __future__ import annotations

import datetime as dt
import logging
import ssl

__all__ = ["end_of_certificate", "warn_of_the_end"]

_log = logging.getLogger(__name__)

_WARN_DAYS = 30
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME = 0xA0, 0x17
_LONG_LENGTH = 0x80
_FORMS = {True: "%y%m%d%H%M%SZ", False: "%Y%m%d%H%M%SZ"}


def warn_of_the_end(pem: bytes) -> None:
    """Log it if the first certificate of a chain has ended, or will within 30 days."""
    try:
        end = end_of_certificate(pem)
    except (ValueError, IndexError) as error:  # OpenSSL took it, so it is of a form that we do not know
        _log.warning("it cannot be told when the certificate in tls_cert ends: %s", error)
        return
    left = end - dt.datetime.now(dt.UTC)
    if left < dt.timedelta():
        _log.error("the certificate in tls_cert ended at %s: clients refuse it; renew it", end.isoformat())
    elif left < dt.timedelta(days=_WARN_DAYS):
        _log.warning("the certificate in tls_cert ends at %s, in %d days", end.isoformat(), left.days)


def end_of_certificate(pem: bytes) -> dt.datetime:
    """The last moment of the first certificate in a PEM text.

    Raises:
        ValueError: there is none, or it is of another form.
    """
    text = pem.decode("ascii", "replace")
    begin = text.index(_BEGIN)
    der = ssl.PEM_cert_to_DER_cert(text[begin : text.index(_END, begin) + len(_END)])
    ((_, certificate),) = _elements(der)
    (_, signed), *_ = _elements(certificate)
    fields = [content for kind, content in _elements(signed) if kind != _VERSION]
    _, _, _, validity, *_ = fields  # serial number, signature algorithm, issuer, validity
    _, (kind, end) = _elements(validity)
    return dt.datetime.strptime(end.decode("ascii"), _FORMS[kind == _UTC_TIME]).replace(tzinfo=dt.UTC)


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Kind and content of each element of DER that stand after each other."""
    found = []
    at = 0
    while at < len(der):
        kind, length, at = der[at], der[at + 1], at + 2
        if length >= _LONG_LENGTH:
            count = length - _LONG_LENGTH
            length, at = int.from_bytes(der[at : at + count], "big"), at + count
        found.append((kind, der[at : at + length]))
        at += length
    return found
