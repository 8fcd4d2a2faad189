"""The key of invocation tickets in tests."""

from pathlib import Path

from gpu_runtime.contract.messages.invocation_ticket import TicketKeyring, parse_ticket_keys
from gpu_runtime.process.shared_settings import TicketSettings

KEY_FILE = Path(__file__).with_name("ticket-keys")
TICKETS = TicketKeyring(parse_ticket_keys(KEY_FILE.read_text()))
TICKET_SETTINGS = TicketSettings(key_file=str(KEY_FILE))
TICKET_SECTION = {"tickets": {"keyFile": str(KEY_FILE)}}
"""The section of a settings file."""
