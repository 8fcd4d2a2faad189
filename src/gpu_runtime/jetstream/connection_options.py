"""Options of a NATS connection: server URLs, credentials, TLS and timeouts.

The client reads the files for every new connection, so a changed file takes effect at the next reconnect.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.errors import NatsMisconfigured
from gpu_runtime.jetstream.nats_credentials import parse_nats_credentials

URL_SCHEMES = ("nats", "tls")


@dataclass(frozen=True)
class TlsOptions:
    ca_file: str = ""
    """File with the CA certificates that sign the server's certificate. Empty: the CA certificates of the operating
    system."""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    """The name that the server's certificate must contain. Empty: the host of the URL."""


@dataclass(frozen=True)
class ConnectionOptions:
    urls: tuple[str, ...]
    name: str = "gpu-runtime"
    """The client name that the monitoring of the NATS server shows for this connection."""
    credentials_file: str = ""
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    tls: TlsOptions | None = None
    connect_timeout: float = 5
    request_timeout: float = 5
    """Default time to wait for a reply or for the connection, in seconds."""
    ping_interval: float = 10
    """Seconds between pings. If the server does not answer two pings, the connection counts as lost."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=0.1, max_seconds=5.0))

    def validate(self) -> None:
        """Raise NatsMisconfigured if these options can never lead to a connection."""
        if not self.urls:
            raise NatsMisconfigured("there is no NATS server URL: set at least one, such as nats://nats.messaging:4222")
        for url in self.urls:
            _check_url(url)
        self.auth_arguments()
        self.tls_context()

    @property
    def requires_tls(self) -> bool:
        return self.tls is not None or any(url.startswith("tls://") for url in self.urls)

    def auth_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments with the credentials, for `connect` of nats-py."""
        if self.credentials_file:
            credentials = parse_nats_credentials(_read_file(self.credentials_file), self.credentials_file)
            return {"user_jwt_cb": credentials.user_jwt.encode, "signature_cb": credentials.sign}
        if self.user:
            return {"user": self.user, "password": _read_file(self.password_file).strip() if self.password_file else ""}
        return {"token": _read_file(self.token_file).strip()} if self.token_file else {}

    def tls_context(self) -> ssl.SSLContext | None:
        if not self.requires_tls:
            return None
        tls = self.tls or TlsOptions()
        try:
            context = ssl.create_default_context(cafile=tls.ca_file or None)
            if tls.cert_file:
                context.load_cert_chain(tls.cert_file, tls.key_file or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (tls.ca_file, tls.cert_file, tls.key_file)))
            raise NatsMisconfigured(f"cannot load the certificates from {files}: {error}") from error
        return context


def redact_url(url: str) -> str:
    """Return the URL without user and password, for logs and errors."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in URL_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise NatsMisconfigured(
            f"{redact_url(url)!r} is not a NATS server URL; use for example nats://nats.messaging:4222"
        )


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NatsMisconfigured(f"cannot read {path}: {error}") from error
