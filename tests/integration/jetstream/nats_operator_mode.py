"""Server config and user credentials for NATS operator mode, in which JWTs authenticate users."""

import base64
import binascii
import json
from dataclasses import dataclass

from nacl.signing import SigningKey

SEED, OPERATOR, ACCOUNT, USER = 18 << 3, 14 << 3, 0, 20 << 3
"""The nkey prefixes. They encode to the first letters S, O, A and U."""


@dataclass(frozen=True)
class OperatorCredentials:
    server_config: str
    """The configuration of the server."""
    credentials: str
    """The content of the user's credentials file."""


def operator() -> OperatorCredentials:
    root, user = _pair(OPERATOR), _pair(USER)
    account, system = _pair(ACCOUNT), _pair(ACCOUNT)
    limits = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1}
    tokens = {
        _name(each): _token(root, _name(each), {"type": "account", "version": 2, "limits": limits})
        for each in (account, system)
    }
    user_limits = {"subs": -1, "data": -1, "payload": -1}
    user_token = _token(account, _name(user), {"type": "user", "version": 2, **user_limits})
    root_token = _token(root, _name(root), {"type": "operator", "version": 2})
    preload = "\n".join(f"{name}: {token}" for name, token in tokens.items())
    access = (
        f"operator: {root_token}\nsystem_account: {_name(system)}\n"
        f"resolver: MEMORY\nresolver_preload: {{\n{preload}\n}}"
    )
    seed = user.seed
    credentials = (
        f"-----BEGIN NATS USER JWT-----\n{user_token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    return OperatorCredentials(access, credentials)


@dataclass(frozen=True)
class NkeyPair:
    kind: int
    key: SigningKey

    @property
    def seed(self) -> str:
        return _encoded(bytes([SEED | self.kind >> 5, (self.kind & 31) << 3]) + bytes(self.key))


def _pair(kind: int) -> NkeyPair:
    return NkeyPair(kind, SigningKey.generate())


def _name(pair: NkeyPair) -> str:
    return _encoded(bytes([pair.kind]) + bytes(pair.key.verify_key))


def _encoded(data: bytes) -> str:
    checked = data + binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")


def _token(signer: NkeyPair, subject: str, claims: dict[str, object]) -> str:
    head = _part({"typ": "JWT", "alg": "ed25519-nkey"})
    body = _part({"jti": subject, "iat": 1, "iss": _name(signer), "name": subject, "sub": subject, "nats": claims})
    signature = base64.urlsafe_b64encode(signer.key.sign(f"{head}.{body}".encode()).signature).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


def _part(value: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
