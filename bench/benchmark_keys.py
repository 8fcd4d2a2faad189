"""The key of invocation tickets in benchmarks."""

import secrets
from pathlib import Path

from gpu_runtime.contract.messages.invocation_ticket import TicketKeyring

_KEY = secrets.token_bytes(32)
TICKETS = TicketKeyring([_KEY])


def ticket_section(folder: Path) -> dict[str, dict[str, str]]:
    """Write the key file, and return the section of a settings file."""
    key_file = folder / "ticket-keys"
    key_file.write_text(_KEY.hex())
    return {"tickets": {"keyFile": str(key_file)}}
