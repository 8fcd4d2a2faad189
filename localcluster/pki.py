"""Issues the certificates of one cluster with a certificate authority of its own, and writes kubeconfigs."""

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CERTIFICATE_VALIDITY = datetime.timedelta(days=3650)


@dataclass(frozen=True)
class CertificatePair:
    """The paths of a certificate and its private key."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class CertificateAuthority:
    """The certificate authority of one cluster. Issued certificates are stored, so they stay valid after a restart."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self._ca_pair.certificate

    @cached_property
    def _ca_pair(self) -> CertificatePair:
        pair = self._paths("ca")
        if not pair.key.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            key = ec.generate_private_key(ec.SECP256R1())
            name = _subject("localcluster")
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            builder = _certificate_builder(name, name, key.public_key()).add_extension(
                x509.BasicConstraints(True, None), True
            )
            builder = builder.add_extension(usage, True)
            _write_pair(pair, builder.sign(key, hashes.SHA256()), key)
        return pair

    def issue(self, name: str, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> CertificatePair:
        """Issue a certificate for a user with these groups. It is also a server certificate for these hosts."""
        pair = self._paths(name)
        if not pair.key.exists():
            authority_key = serialization.load_pem_private_key(self._ca_pair.key.read_bytes(), None)
            assert isinstance(authority_key, ec.EllipticCurvePrivateKey)  # noqa: S101
            issuer = x509.load_pem_x509_certificate(self._ca_pair.certificate.read_bytes()).subject
            key = ec.generate_private_key(ec.SECP256R1())
            builder = _certificate_builder(_subject(user, groups), issuer, key.public_key())
            purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), False)
            if hosts:
                builder = builder.add_extension(
                    x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False
                )
            _write_pair(pair, builder.sign(authority_key, hashes.SHA256()), key)
        return pair

    def signing_key(self, name: str) -> Path:
        """Return a key without certificate, for example the key that signs service account tokens."""
        path = self.folder / f"{name}.key"
        if not path.exists():
            _write_private(path, _pem(rsa.generate_private_key(65537, 2048)))
        return path

    def write_kubeconfig(self, path: Path, server: str, pair: CertificatePair) -> Path:
        """Write a kubeconfig with embedded certificates and key, so that it depends on no other file."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "local",
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
            "clusters": [
                {
                    "name": "local",
                    "cluster": {"server": server, "certificate-authority-data": _base64_of(self.certificate)},
                }
            ],
            "users": [
                {
                    "name": "local",
                    "user": {
                        "client-certificate-data": _base64_of(pair.certificate),
                        "client-key-data": _base64_of(pair.key),
                    },
                }
            ],
        }
        _write_private(path, yaml.safe_dump(config).encode())
        return path

    def _paths(self, name: str) -> CertificatePair:
        return CertificatePair(self.folder / f"{name}.crt", self.folder / f"{name}.key")


def _subject(user: str, groups: Sequence[str] = ()) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + CERTIFICATE_VALIDITY)
    )


def _write_pair(pair: CertificatePair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_private(pair.key, _pem(key))


def _write_private(path: Path, data: bytes) -> None:
    """Write a file atomically. Only its owner can read it."""
    staging = path.with_name(f".{path.name}.new")
    staging.touch(mode=0o600)
    staging.write_bytes(data)
    staging.rename(path)


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _base64_of(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
