"""Parses NATS credentials files. A file contains the user JWT, and the nkey seed that signs the server's nonce."""

import base64
import binascii
import re
from dataclasses import dataclass

from nacl.signing import SigningKey

from gpu_runtime.jetstream.errors import NatsMisconfigured

_SECTION_PATTERN = r"-+BEGIN {name}-+\s+(\S+)\s+-+END {name}-+"


@dataclass(frozen=True)
class NatsCredentials:
    user_jwt: str
    signing_key: SigningKey

    def sign(self, nonce: str) -> bytes:
        """Return the signature of the server's nonce as base64, as the CONNECT command requires it."""
        return base64.b64encode(self.signing_key.sign(nonce.encode()).signature)


def parse_nats_credentials(text: str, path: str) -> NatsCredentials:
    jwt, seed = (re.search(_SECTION_PATTERN.format(name=name), text) for name in ("NATS USER JWT", "USER NKEY SEED"))
    if jwt is None or seed is None:
        raise NatsMisconfigured(f"{path} is not a NATS credentials file: it must contain a user JWT and an nkey seed")
    try:
        return NatsCredentials(jwt[1], SigningKey(_decode_seed(seed[1])))
    except (binascii.Error, ValueError) as error:
        raise NatsMisconfigured(f"{path} is not a NATS credentials file: its nkey seed is invalid") from error


def _decode_seed(seed: str) -> bytes:
    """Return the 32 seed bytes of an encoded nkey: 2 bytes key type, 32 bytes seed, 2 bytes CRC."""
    data = base64.b32decode(seed + "=" * (-len(seed) % 8))
    if len(data) != 36 or binascii.crc_hqx(data[:-2], 0) != int.from_bytes(data[-2:], "little"):
        raise ValueError("wrong checksum")
    return data[2:-2]
