"""Certificates of an authority that only a test trusts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of an authority, a server and a client that it signed."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def issue_certificates(folder: Path) -> Certificates:
    """Write new ones into a folder; the server's is for loopback."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority")
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1", "localhost")
        issued.cert_chain_pems[0].write_to_path(folder / name)
        issued.private_key_pem.write_to_path(folder / f"{name}_key")
    names = ("authority", "server", "server_key", "client", "client_key")
    return Certificates(*(folder / name for name in names))
