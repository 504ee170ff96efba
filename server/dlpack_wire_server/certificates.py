"""The server's certificates: checked before it starts, and read again when they are renewed."""

from __future__ import annotations

import logging
import ssl
from typing import NamedTuple

import grpc

_log = logging.getLogger(__name__)


class _Content(NamedTuple):
    cert: bytes
    key: bytes
    client_ca: bytes | None


class Certificates:
    """A certificate chain, its private key, and the authorities whose clients are let in."""

    def __init__(self, cert: str, key: str, client_ca: str | None) -> None:
        """Read and check the files.

        Args:
            cert: PEM file of the chain.
            key: PEM file of its private key.
            client_ca: PEM file of the authorities, or None to ask for no client certificate.

        Raises:
            OSError: A file cannot be read.
            ValueError: A file is not what it should be, or the key is not the certificate's.
        """
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._content = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for gRPC, which asks at each handshake whether there are new certificates."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._content),
            self.renewed,  # type: ignore[arg-type]  # None is allowed: grpc.dynamic_ssl_server_credentials says so
            require_client_authentication=self._client_ca is not None,
        )

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the certificates if they have changed since the last time and are good, else None."""
        try:
            content = self._read()
        except (OSError, ValueError) as error:
            _log.error("the certificates read before stay in force: %s", error)
            return None
        if content == self._content:
            return None
        self._content = content
        _log.info("read the certificates again")
        return _configuration(content)

    def _read(self) -> _Content:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        content = _Content(
            _pem(self._cert, b"CERTIFICATE"),
            _pem(self._key, b"PRIVATE KEY"),
            None if self._client_ca is None else _pem(self._client_ca, b"CERTIFICATE"),
        )
        try:
            context.load_cert_chain(self._cert, self._key)
        except ssl.SSLError as error:
            said = "the key is another certificate's" if "MISMATCH" in str(error) else str(error)
            raise ValueError(f"{self._cert} and {self._key}: {said}") from None
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise ValueError(f"{self._client_ca}: {error}") from None
        return content


def _pem(path: str, kind: bytes) -> bytes:
    with open(path, "rb") as f:
        content = f.read()
    if kind + b"-----" not in content:
        raise ValueError(f"{path}: not a PEM file with a {kind.decode().lower()}")
    return content


def _configuration(content: _Content) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(content.key, content.cert)], content.client_ca)
