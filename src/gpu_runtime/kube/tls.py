"""Whom to believe and how to show who one is, as a TLS context."""

import os
import ssl
import sys
import tempfile
from pathlib import Path

from gpu_runtime.kube.config import KubeTLSConfig
from gpu_runtime.kube.errors import KubeConfigError
from gpu_runtime.kube.kube_credentials import ClientIdentity


def tls_context(trust: KubeTLSConfig, identity: ClientIdentity) -> ssl.SSLContext:
    try:
        data = trust.ca_certificate.read_bytes() if isinstance(trust.ca_certificate, Path) else trust.ca_certificate
        context = ssl.create_default_context(cadata=data.decode() if data else None)
        if trust.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if identity.certificate is not None:
            _load_certificate(context, identity)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise KubeConfigError(f"the certificates cannot be used: {error}") from error
    return context


def _load_certificate(context: ssl.SSLContext, identity: ClientIdentity) -> None:
    """Python reads a client's key only from a file. It gets one that exists in memory, where the system has those."""
    pem = (identity.certificate or b"") + b"\n" + (identity.key or b"")
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("client-key"), "wb") as memory:
            memory.write(pem)
            memory.flush()
            context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}")
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)
