"""What a server needs to admit users by signed credentials: an operator, an account, a user, and their tokens."""

import base64
import json
import os
from dataclasses import dataclass

import nkeys  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Operator:
    access: str
    """The server's configuration."""
    credentials: str
    """The user's file."""


def operator() -> Operator:
    root, user = _pair(nkeys.PREFIX_BYTE_OPERATOR), _pair(nkeys.PREFIX_BYTE_USER)
    account, system = _pair(nkeys.PREFIX_BYTE_ACCOUNT), _pair(nkeys.PREFIX_BYTE_ACCOUNT)
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
    seed = user.seed.decode()
    credentials = (
        f"-----BEGIN NATS USER JWT-----\n{user_token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    return Operator(access, credentials)


def _pair(prefix: int) -> nkeys.KeyPair:
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), prefix)))


def _name(pair: nkeys.KeyPair) -> str:
    name: str = bytes(pair.public_key).decode()
    return name


def _token(signer: nkeys.KeyPair, subject: str, claims: dict[str, object]) -> str:
    head = _part({"typ": "JWT", "alg": "ed25519-nkey"})
    body = _part({"jti": subject, "iat": 1, "iss": _name(signer), "name": subject, "sub": subject, "nats": claims})
    signature = base64.urlsafe_b64encode(signer.sign(f"{head}.{body}".encode())).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


def _part(value: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
