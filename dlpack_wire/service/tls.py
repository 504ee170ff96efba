"""What a client needs for TLS."""

from __future__ import annotations

from typing import NamedTuple


class Tls(NamedTuple):
    """TLS settings of a client.

    Attributes:
        ca: PEM file of the authorities to trust; None: the system's.
        cert: PEM file of the client's own certificate chain, or None.
        key: PEM file of its private key, or None.
        server_name: Name to expect in the server's certificate, if not the address's.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None
