"""Reads the keys of invocation tickets from a file, and reads them again when the file changes.

Kubernetes updates a mounted Secret by swapping a symbolic link, so that the same path leads to another file. If the new
file is invalid, the process continues with the previous keys and logs the error.
"""

import asyncio
import logging
from pathlib import Path

from gpu_runtime.contract.messages.invocation_ticket import InvalidTicketKeys, TicketKeyring, parse_ticket_keys
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.process.shared_settings import TicketSettings

logger = logging.getLogger(__name__)

KEY_FILE_POLL_INTERVAL_SECONDS = 1.0


class TicketKeyFile:
    def __init__(self, settings: TicketSettings) -> None:
        """Load the file. Raises InvalidSettings if the file cannot be read or is invalid."""
        self._path = Path(settings.key_file)
        self._keys = _load_keys(self._path)
        self._problem = ""
        self.keyring = TicketKeyring(self._keys)

    async def watch(self, stopping: asyncio.Event) -> None:
        """Reload the file whenever it changes, until `stopping` is set."""
        while not await is_set_within(stopping, KEY_FILE_POLL_INTERVAL_SECONDS):
            await asyncio.to_thread(self.reload_if_changed)

    def reload_if_changed(self) -> None:
        try:
            keys = _load_keys(self._path)
        except InvalidSettings as error:
            self._log_problem(str(error))
            return
        self._problem = ""
        if keys != self._keys:
            self._keys = keys
            self.keyring.replace(keys)
            logger.info("ticket key file reloaded", extra={"file": str(self._path), "count": len(keys)})

    def _log_problem(self, problem: str) -> None:
        """Log each problem once, not with every reload."""
        if problem != self._problem:
            self._problem = problem
            fields = {"file": str(self._path), "error": problem}
            logger.error("ticket key file reload failed; the process continues with the previous keys", extra=fields)


def _load_keys(path: Path) -> tuple[bytes, ...]:
    try:
        return parse_ticket_keys(path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError, InvalidTicketKeys) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidSettings(
            f"tickets.keyFile: {path}: {reason}; write a key to the file, or to the Secret that it is mounted from:"
            " openssl rand -hex 32"
        ) from error
