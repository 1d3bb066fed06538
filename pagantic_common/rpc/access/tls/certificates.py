"""Reads the certificate, key and trusted authorities of a service from files that may be replaced at any time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.access.watched_file import WatchedFile
from pagantic_common.settings import ServiceSettings, Tls
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import add_gauge
from pagantic_common.telemetry.names import TLS_CERTIFICATE_EXPIRY

MAX_AUTHORITIES_BYTES = 1024 * 1024  # Four times the size of all public authorities.
CERT_FILE, KEY_FILE, CA_FILE = "TLS_CERT_FILE", "TLS_KEY_FILE", "TLS_CA_FILE"

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The certificate presented by one side of a connection, and its trusted authorities, all in PEM.

    Attributes:
        chain: The certificate, and the intermediate certificates up to the authority.
        key: The private key of the certificate.
        authorities: Certificates of the trusted authorities.
        expires_at: The time at which the certificate expires, in seconds since 1970.
    """

    chain: bytes
    key: bytes = field(repr=False)
    authorities: bytes
    expires_at: float

    def for_calling(self) -> grpc.ChannelCredentials:
        """Return the credentials of a channel."""
        return grpc.ssl_channel_credentials(self.authorities, self.key, self.chain)

    def for_serving(self) -> grpc.ServerCertificateConfiguration:
        """Return the configuration of a server."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], self.authorities)


class CertificateFiles:
    """The newest certificates from files that belong together. Safe to use from any thread.

    If the files cannot be read or do not match, for example while they are being replaced, the certificates stay
    unchanged. The constructor raises InvalidRequest in these cases.
    """

    def __init__(self, chain: Path, key: Path, *authorities: Path) -> None:
        self._own = WatchedFile(chain, CERT_FILE, bytes), WatchedFile(key, KEY_FILE, bytes)
        self._authorities = [WatchedFile(path, CA_FILE, bytes, MAX_AUTHORITIES_BYTES) for path in authorities]
        self._lock = threading.Lock()
        self._read = self._contents()
        self._current = parse_certificates(*self._read)

    def current(self) -> Certificates:
        """Return the certificates. The result is the same object until the certificates change."""
        with self._lock:
            contents = self._contents()
            if contents != self._read:
                self._read = contents
                self._replace()
            return self._current

    def _contents(self) -> tuple[bytes, bytes, bytes]:
        chain, key = (file.content() for file in self._own)
        return chain, key, b"\n".join(file.content() for file in self._authorities)

    def _replace(self) -> None:
        try:
            self._current = parse_certificates(*self._read)
        except InvalidRequest as error:
            log.warning("the certificates stay as they were", reason=str(error))
        else:
            log.info("the certificates were replaced", expires_at=round(self._current.expires_at))


def parse_certificates(chain: bytes, key: bytes, authorities: bytes) -> Certificates:
    """Return certificates that belong together. Raises InvalidRequest, without quoting them, if they do not match."""
    own = _parse_chain(chain, CERT_FILE)[0]
    _parse_chain(authorities, CA_FILE)
    try:
        private_key = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidRequest(f"{KEY_FILE} does not hold a private key in PEM, without a password") from None
    if private_key.public_key() != own.public_key():
        raise InvalidRequest(f"the key of {KEY_FILE} is not that of the certificate of {CERT_FILE}")
    return Certificates(chain, key, authorities, own.not_valid_after_utc.timestamp())


@lru_cache(maxsize=1024)
def expiry_of(certificate: bytes) -> float:
    """Return the time at which a certificate in PEM expires, in seconds since 1970."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()


def read_certificates(settings: ServiceSettings, more_authorities: Path | None = None) -> CertificateFiles | None:
    """Return the certificates that the settings name, or None if TLS does not use files.

    The authorities in `more_authorities` are trusted in addition to the authorities in TLS_CA_FILE. Raises
    InvalidRequest if a file is unusable.
    """
    if settings.tls is not Tls.FILES:
        return None
    named = (settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file, more_authorities)
    return CertificateFiles(*(path for path in named if path is not None))


def server_credentials(files: CertificateFiles, *, requires_certificate: bool) -> grpc.ServerCredentials:
    """Return the credentials of a server, which presents the newest certificate to new connections.

    Args:
        files: The certificates of the server.
        requires_certificate: Whether callers must present a certificate from the authorities. Otherwise, no certificate
            is requested.
    """
    add_gauge(TLS_CERTIFICATE_EXPIRY, "when the certificate expires, seconds since 1970", _expiry_of(files))
    shown = files.current()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        newest = files.current()
        if newest is shown:
            return None
        shown = newest
        return newest.for_serving()

    # The stub does not declare that None keeps the certificate.
    return grpc.dynamic_ssl_server_credentials(shown.for_serving(), newer, requires_certificate)  # type: ignore[arg-type]


def _expiry_of(files: CertificateFiles) -> Callable[[], float]:
    return lambda: files.current().expires_at


def _parse_chain(data: bytes, setting: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise InvalidRequest(f"{setting} does not hold a certificate in PEM") from None
