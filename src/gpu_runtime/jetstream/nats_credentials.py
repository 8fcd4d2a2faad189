"""Credentials files of NATS: a user's token, and the seed of the key that proves it is the user's."""

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
        """The server's challenge with our signature, as the protocol carries it."""
        return base64.b64encode(self.signing_key.sign(nonce.encode()).signature)


def parse_nats_credentials(text: str, path: str) -> NatsCredentials:
    token, seed = (re.search(_SECTION_PATTERN.format(name=name), text) for name in ("NATS USER JWT", "USER NKEY SEED"))
    if token is None or seed is None:
        raise NatsMisconfigured(f"{path} is no credentials file: it holds no user JWT and seed")
    try:
        return NatsCredentials(token[1], SigningKey(_decode_seed(seed[1])))
    except (binascii.Error, ValueError) as error:
        raise NatsMisconfigured(f"{path} is no credentials file: its seed is broken") from error


def _decode_seed(seed: str) -> bytes:
    """Two bytes say what the seed is for, thirty-two are the seed, and two are a checksum."""
    data = base64.b32decode(seed + "=" * (-len(seed) % 8))
    if len(data) != 36 or binascii.crc_hqx(data[:-2], 0) != int.from_bytes(data[-2:], "little"):
        raise ValueError("wrong checksum")
    return data[2:-2]
