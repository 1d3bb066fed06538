"""Authorities and certificates of tests, and files in which they are replaced."""

import ipaddress
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PREFIX = "spiffe://cluster.local/ns/pagantic/sa/"
HOUR = timedelta(hours=1)
USES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


def now():
    return datetime.now(UTC)


def named(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Signs certificates for 127.0.0.1 and localhost."""

    def __init__(self, name="tests"):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = named(name)
        own = [
            (x509.BasicConstraints(ca=True, path_length=None), True),
            (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
        ]
        self.pem = self._sign(self._name, self._key, (now() - HOUR, now() + 24 * HOUR), own)

    def issue(self, *spiffe_ids, begin=None, end=None):
        """Return a certificate and its key, in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        names += map(x509.UniformResourceIdentifier, spiffe_ids)
        # Without the id of its key, an authority is taken for the other ones of its name.
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        extensions = [(x509.SubjectAlternativeName(names), False), (USES, False), (issuer, False)]
        validity = (begin or now() - HOUR, end or now() + HOUR)
        return self._sign(named("a service"), key, validity, extensions), private_pem(key)

    def _sign(self, subject, key, validity, extensions):
        number = x509.random_serial_number()
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), number, *validity)
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def private_pem(key):
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class TlsFiles:
    """The three files of one service."""

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.chain, self.key, self.authorities = folder / "tls.crt", folder / "tls.key", folder / "ca.crt"

    def write(self, issued, *authorities):
        """Replace all three, one after the other, as no service may mind."""
        chain, key = issued
        for path, data in (
            (self.authorities, b"".join(authority.pem for authority in authorities)),
            (self.chain, chain),
            (self.key, key),
        ):
            replace(path, data)
        return self

    @property
    def settings(self):
        """Settings that name them, without prefix."""
        return {"tls": "files", "tls_cert_file": self.chain, "tls_key_file": self.key, "tls_ca_file": self.authorities}

    @property
    def environment(self):
        """The same as variables of all services and commands."""
        return {f"PAGANTIC_{name.upper()}": str(value) for name, value in self.settings.items()}


def replace(path, data):
    """Write a file that is never seen half."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)


class Turnover:
    """Replaces authorities and certificates of several services, one authority after the other.

    Each replacement signs with an authority that all trusted one replacement earlier, and trusts the one before still:
    services read their files at moments of their own.

    Args:
        files: The files of each service, by the ids that its certificates have.
    """

    def __init__(self, files):
        self._files = files
        self._authorities = [Authority(), Authority(), Authority()]
        self.count = 0
        self.write()

    def write(self):
        _, current, _ = self._authorities
        for spiffe_id, files in self._files.items():
            files.write(current.issue(spiffe_id), *self._authorities)

    def replace(self):
        """Replace every certificate, and the eldest authority."""
        self._authorities = [*self._authorities[1:], Authority()]
        self.count += 1
        self.write()
