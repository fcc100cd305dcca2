"""Certificates with names of any type, which trustme does not issue."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

DNS, URI, EMAIL = x509.DNSName, x509.UniformResourceIdentifier, x509.RFC822Name


class Certificate(NamedTuple):
    """A client's certificate and its key (PEM)."""

    cert: bytes
    key: bytes


def issue(authority: trustme.CA, names: Sequence[x509.GeneralName], common_name: str = "alice") -> Certificate:
    """A certificate with these subject alternative names, in this order."""
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    issuer_key = load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer.subject,
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)]),
        key.public_key(),
        x509.random_serial_number(),
        now - timedelta(days=1),
        now + timedelta(days=1),
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(builder.sign(issuer_key, SHA256()).public_bytes(Encoding.PEM), pem)
