"""`gpu-runtime tokens create`: prints a random token once, and the entry for the token file with its digest.

The entry goes to standard output, so that it can be appended to the file. The token goes to standard error.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import yaml

from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.runtime_api.http.token_entries import DIGEST_PREFIX, TokenList, new_token, parse_tokens, token_digest

EXIT_INVALID_ARGUMENTS = 2
MAX_LIFETIME = timedelta(days=3650)
_TIME_UNITS: Mapping[str, timedelta] = MappingProxyType(
    {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1)}
)


def run(options: argparse.Namespace) -> int:
    token = new_token()
    try:
        entry = token_entry(token, options, datetime.now(UTC))
    except InvalidSettings as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_INVALID_ARGUMENTS
    sys.stderr.write(f"The token of {options.name} (save it now, because no command can show it again):\n{token}\n")
    sys.stdout.write(yaml.safe_dump([entry], sort_keys=False))
    return 0


def token_entry(token: str, options: argparse.Namespace, now: datetime) -> dict[str, object]:
    """Return the entry of the token. Raises InvalidSettings if the token file would not accept the entry."""
    entry: dict[str, object] = {
        "name": options.name,
        "digest": DIGEST_PREFIX + token_digest(token).hex(),
        "scopes": options.scopes.split(","),
    }
    if options.expires_in:
        entry["expiresAt"] = (now + _lifetime(options.expires_in)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for problem in parse_tokens(TokenList(tokens=(entry,))).problems:
        raise InvalidSettings(problem.removeprefix("tokens[0]."))
    return entry


def _lifetime(text: str) -> timedelta:
    match = re.fullmatch(r"([1-9][0-9]{0,6})([dhm])", text)
    lifetime = int(match[1]) * _TIME_UNITS[match[2]] if match else None
    if lifetime is None or lifetime > MAX_LIFETIME:
        raise InvalidSettings(f"--expires-in: {text!r} is not a time such as 90d, 12h or 30m, up to 3650d")
    return lifetime
