"""Certificates and tokens, as operators have them: the same files before and after an upgrade."""

from dataclasses import dataclass
from pathlib import Path

import grpc
import trustme

# Identities, and the names that their certificates have: of each kind that there are.
NAMES = {"ps": "ps.example.org", "worker": "worker.example.org", "alice": "alice@example.org", "probe": "192.0.2.7"}


@dataclass(frozen=True)
class Files:
    """A folder with an authority, a server's certificate, and a certificate and a token of each identity."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> "Files":
        """Make them."""
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.pem")
        for name, subject in {"server": "127.0.0.1", **NAMES}.items():
            leaf = authority.issue_cert(subject)
            leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
            leaf.private_key_pem.write_to_path(folder / f"{name}.key")
        for name in NAMES:
            (folder / f"{name}.token").write_text(f"token-of-{name}-3f1c\n")
        (folder / "identities").write_text("".join(f"{name} token-of-{name}-3f1c\n" for name in NAMES))
        return cls(folder)

    @property
    def identities(self) -> str:
        """The token file of a server."""
        return str(self.folder / "identities")

    def server(self) -> tuple[str, ...]:
        """Flags of a server that wants certificates of its clients."""
        own = ("--tls-cert", str(self.folder / "server.pem"), "--tls-key", str(self.folder / "server.key"))
        return (*own, "--tls-client-ca", str(self.folder / "ca.pem"))

    def client(self, name: str, prefix: str = "--") -> tuple[str, ...]:
        """Flags, with this prefix, of a client that has a certificate and a token."""
        files = {"tls-ca": "ca.pem", "tls-cert": f"{name}.pem", "tls-key": f"{name}.key", "token-file": f"{name}.token"}
        return tuple(word for flag, file in files.items() for word in (prefix + flag, str(self.folder / file)))

    def credentials(self, name: str, with_token: bool) -> grpc.ChannelCredentials:
        """The same for gRPC itself."""
        ca, key, cert = ((self.folder / file).read_bytes() for file in ("ca.pem", f"{name}.key", f"{name}.pem"))
        certificate = grpc.ssl_channel_credentials(ca, key, cert)
        if not with_token:
            return certificate
        token = grpc.access_token_call_credentials((self.folder / f"{name}.token").read_text().strip())
        return grpc.composite_channel_credentials(certificate, token)
