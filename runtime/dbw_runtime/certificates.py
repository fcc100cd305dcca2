"""The names in a client's certificate.

gRPC tells them as well, but ends each at its first NUL character, so that more than one certificate has the same name.
"""

from cryptography import x509

TYPES: dict[type[x509.GeneralName], str] = {
    x509.UniformResourceIdentifier: "URI:",
    x509.DNSName: "DNS:",
    x509.RFC822Name: "email:",
    x509.IPAddress: "IP:",
}
PREFIXES = tuple(TYPES.values())
MAX_LENGTH = 1024  # of an identity
UNREADABLE = (
    ValueError,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


def names_in(certificate: bytes) -> list[str]:
    """The subject alternative names in a certificate (PEM), as TYPE:NAME; the first one is its holder's identity.

    It is the same in whichever order the certificate has them: by type, and of one type first the longest, which is the
    most specific. Names that every machine has come last. What is no name is left out.
    """
    try:
        extensions = x509.load_pem_x509_certificate(certificate).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except UNREADABLE:
        return []
    typed = {f"{TYPES[type(name)]}{name.value}" for name in names if type(name) in TYPES and name.value}
    return sorted((name for name in typed if name.isprintable() and len(name) <= MAX_LENGTH), key=_rank)


def _rank(name: str) -> tuple[bool, int, int, str]:
    kind, _, value = name.partition(":")
    is_local = value == "localhost" or (kind == "IP" and (value == "::1" or value.startswith("127.")))
    return is_local, PREFIXES.index(f"{kind}:"), -len(value), name
