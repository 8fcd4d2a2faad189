"""How NATS is reached: addresses, credentials, certificates. Files are read at every connection, so they may change."""

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
    """Whom to trust. Empty: the machine's own authorities."""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    """What the server's certificate must say. Empty: the host of the address."""


@dataclass(frozen=True)
class ConnectionOptions:
    urls: tuple[str, ...]
    name: str = "gpu-runtime"
    """How the server's monitoring names this connection."""
    credentials_file: str = ""
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    tls: TlsOptions | None = None
    connect_timeout: float = 5
    request_timeout: float = 5
    """How long one answer may take."""
    ping_interval: float = 10
    """A server that does not answer two pings is taken for gone."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=0.1, max_seconds=5.0))

    def validate(self) -> None:
        """Raise Misconfigured where no connection can ever come of it."""
        if not self.urls:
            raise NatsMisconfigured("there is no address of a NATS server")
        for url in self.urls:
            _check_url(url)
        self.auth_arguments()
        self.tls_context()

    @property
    def requires_tls(self) -> bool:
        return self.tls is not None or any(url.startswith("tls://") for url in self.urls)

    def auth_arguments(self) -> dict[str, Any]:
        """As the client library takes them."""
        if self.credentials_file:
            found = parse_nats_credentials(_read_file(self.credentials_file), self.credentials_file)
            return {"user_jwt_cb": found.user_jwt.encode, "signature_cb": found.sign}
        if self.user:
            return {"user": self.user, "password": _read_file(self.password_file).strip() if self.password_file else ""}
        return {"token": _read_file(self.token_file).strip()} if self.token_file else {}

    def tls_context(self) -> ssl.SSLContext | None:
        if not self.requires_tls:
            return None
        wanted = self.tls or TlsOptions()
        try:
            context = ssl.create_default_context(cafile=wanted.ca_file or None)
            if wanted.cert_file:
                context.load_cert_chain(wanted.cert_file, wanted.key_file or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (wanted.ca_file, wanted.cert_file, wanted.key_file)))
            raise NatsMisconfigured(f"the certificates in {files} cannot be used: {error}") from error
        return context


def redact_url(url: str) -> str:
    """The address as it may be logged."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in URL_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise NatsMisconfigured(f"{redact_url(url)!r} is no address; write for example nats://nats.messaging:4222")


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NatsMisconfigured(f"{path} cannot be read: {error}") from error
