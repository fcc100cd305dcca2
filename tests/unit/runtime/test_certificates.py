"""The names in a certificate, whatever stands in it."""

import base64
import ssl

import trustme

from dbw_runtime.certificates import names_in
from tests.certificates import DNS, issue

VERSION = b"\xa0\x03\x02\x01"  # in DER, before its number


def test_a_certificate_of_a_version_that_does_not_exist_names_nobody() -> None:
    certificate = issue(trustme.CA(), [DNS("ps-1.vision")]).cert
    assert names_in(certificate) == ["DNS:ps-1.vision"]
    changed = ssl.PEM_cert_to_DER_cert(certificate.decode()).replace(VERSION + b"\x02", VERSION + b"\x06", 1)
    armoured = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(changed) + b"-----END CERTIFICATE-----\n"
    assert names_in(armoured) == []
