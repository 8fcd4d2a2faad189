"""A real NATS server with JetStream on a free port, with an account of one's own for whoever asks."""

import itertools
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from localcluster.control_plane import free_port
from localcluster.paths import scratch_dir
from localcluster.supervisor_client import SupervisorClient, wait_until

NATS_SERVER_BINARY = Path(sys.executable).with_name("nats-server")
# What streams may reserve together. By itself the server takes three quarters of the disk that is free at its start,
# and then refuses the streams of the next account although nobody has written a byte.
MAX_FILE_STORE = "1TB"


@dataclass(frozen=True)
class NatsAccount:
    """A tenant of the server: its streams, subjects and buckets are nobody else's."""

    name: str
    url: str


@dataclass
class NatsServer:
    state_dir: Path
    port: int
    accounts: dict[str, str] = field(default_factory=lambda: {"nobody": secrets.token_hex(8)})
    """Names and passwords. There is always one: a server without any admits everybody, and cuts them off later."""
    access_config: str = ""
    """Who may come in, in the words of the server's configuration. Empty: those who have an account."""
    monitor_port: int = field(default_factory=free_port)
    """Where it answers over HTTP how it is."""
    _account_numbers: Iterator[int] = field(default_factory=itertools.count)

    @cached_property
    def processes(self) -> SupervisorClient:
        return SupervisorClient(self.state_dir)

    def start(self) -> None:
        self._write_config()
        self.processes.start("nats", [NATS_SERVER_BINARY, "--config", self._config_path])
        self.processes.wait_for("nats", self._is_listening)

    def create_account(self) -> NatsAccount:
        """Make an account and return when the server knows it."""
        name, password = f"account-{next(self._account_numbers)}", secrets.token_hex(8)
        self.accounts[name] = password
        self._write_config()
        self.processes.signal("nats", signal.SIGHUP)
        account = NatsAccount(name, f"nats://{name}:{password}@127.0.0.1:{self.port}")
        wait_until(lambda: self._accepts_login(name, password), 10, lambda: f"NATS did not learn of {name}")
        return account

    @property
    def _config_path(self) -> Path:
        return self.state_dir / "nats.conf"

    def _write_config(self) -> None:
        access = self.access_config or f"accounts {{\n{self._accounts_config()}\n}}"
        store = f'jetstream {{ store_dir: "{self.state_dir / "jetstream"}", max_file_store: {MAX_FILE_STORE} }}'
        text = f"listen: 127.0.0.1:{self.port}\nhttp: 127.0.0.1:{self.monitor_port}\n{store}\n{access}\n"
        staging = self._config_path.with_suffix(".new")
        staging.write_text(text)
        staging.rename(self._config_path)

    def _accounts_config(self) -> str:
        return "\n".join(
            f'  {name}: {{ jetstream: enabled, users: [{{ user: "{name}", password: "{password}" }}] }}'
            for name, password in self.accounts.items()
        )

    def _is_listening(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _accepts_login(self, name: str, password: str) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            stream = connection.makefile("rwb")
            stream.readline()
            stream.write(f'CONNECT {{"user":"{name}","pass":"{password}","verbose":false}}\r\nPING\r\n'.encode())
            stream.flush()
            return stream.readline().startswith(b"PONG")


@contextmanager
def temporary_nats_server(
    access_config: str = "", supervisor_wrapper: Callable[[Path], Sequence[str]] = lambda _state: ()
) -> Iterator[NatsServer]:
    """A server of one's own, gone with its data at the end; inside whatever the wrapping command makes of its state."""
    with scratch_dir("nats") as state:
        server = NatsServer(state, free_port(), access_config=access_config)
        try:
            server.processes.launch(supervisor_wrapper(state), die_with_parent=True)
            server.start()
            yield server
        finally:
            server.processes.shutdown()
