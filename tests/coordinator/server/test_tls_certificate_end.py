"""The end of a certificate is told before clients tell it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from cryptography import x509

from superdl.coordinator.server import tls as certificate_end
from superdl.coordinator.server.tls import ServerTls, end_of_certificate, warn_of_the_end


def test_the_end_is_read_as_others_read_it(certificates):
    for pair in (certificates.server, certificates.expired, certificates.elsewhere):
        pem = Path(pair.cert_file).read_bytes()
        known = x509.load_pem_x509_certificate(pem).not_valid_after_utc
        assert end_of_certificate(pem + Path(certificates.ca_file).read_bytes()) == known


def test_an_end_that_is_near_or_past_is_logged_when_a_certificate_is_taken(certificates, caplog, monkeypatch):
    ServerTls(certificates.server.cert_file, certificates.server.key_file)
    assert [(one.levelno, "ends at" in one.message) for one in caplog.records] == [(logging.WARNING, True)]
    caplog.clear()
    monkeypatch.setattr(certificate_end, "_WARN_DAYS", 0)
    ServerTls(certificates.server.cert_file, certificates.server.key_file)
    assert not caplog.records
    ServerTls(certificates.expired.cert_file, certificates.expired.key_file)
    assert [(one.levelno, "clients refuse it" in one.message) for one in caplog.records] == [
        (logging.ERROR, True)
    ]


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----",
    ],
)
def test_what_is_of_another_form_is_no_error(pem, caplog):
    warn_of_the_end(pem)
    assert "cannot be told" in caplog.text
