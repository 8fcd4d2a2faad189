"""Builds the TLS context for connections to the API server, from the CA certificate and the client certificate."""

import os
import ssl
import sys
import tempfile
from pathlib import Path

from gpu_runtime.kube.config import KubeTLSConfig
from gpu_runtime.kube.errors import KubeConfigError
from gpu_runtime.kube.kube_credentials import ClientIdentity


def tls_context(config: KubeTLSConfig, identity: ClientIdentity) -> ssl.SSLContext:
    try:
        data = config.ca_certificate.read_bytes() if isinstance(config.ca_certificate, Path) else config.ca_certificate
        context = ssl.create_default_context(cadata=data.decode() if data else None)
        if config.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if identity.certificate is not None:
            _load_certificate(context, identity)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise KubeConfigError(f"cannot use the CA certificate or the client certificate: {error}") from error
    return context


def _load_certificate(context: ssl.SSLContext, identity: ClientIdentity) -> None:
    """Load the client certificate and its key.

    Python can load a key only from a file. On Linux, this function uses a file in memory, so that the key is not
    written to disk.
    """

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
