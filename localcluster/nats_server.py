"""Runs a real NATS server with JetStream on a free port, and creates isolated accounts on it."""

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

from localcluster.free_ports import free_port
from localcluster.paths import scratch_dir
from localcluster.supervisor_client import SupervisorClient, wait_until

NATS_SERVER_BINARY = Path(sys.executable).with_name("nats-server")
# The limit of the storage that all streams together may reserve, on disk and in memory. The defaults are three quarters
# of the free disk space and of the memory. With the defaults, the reservations of some accounts make the server reject
# the streams of the next account, even if no stream has stored any data.
MAX_STORE = "100TB"


@dataclass(frozen=True)
class NatsAccount:
    """An account of the server. Its streams, subjects and buckets are isolated from those of other accounts."""

    name: str
    url: str


@dataclass
class NatsServer:
    state_dir: Path
    port: int
    accounts: dict[str, str] = field(default_factory=lambda: {"unused": secrets.token_hex(8)})
    """Account names and passwords. There is always at least one account: a server without accounts accepts every
    client, and disconnects these clients when the first account is added."""
    access_config: str = ""
    """The authentication part of the server configuration. If it is empty, clients log in with one of `accounts`."""
    monitor_port: int = field(default_factory=free_port)
    """The port of the server's HTTP monitoring endpoints."""
    _account_numbers: Iterator[int] = field(default_factory=itertools.count)

    @cached_property
    def processes(self) -> SupervisorClient:
        return SupervisorClient(self.state_dir)

    def start(self) -> None:
        self._write_config()
        self.processes.start("nats", [NATS_SERVER_BINARY, "--config", self._config_path])
        self.processes.wait_for("nats", self._is_listening)

    def create_account(self) -> NatsAccount:
        """Create an account and wait until the server accepts its login."""
        name, password = f"account-{next(self._account_numbers)}", secrets.token_hex(8)
        self.accounts[name] = password
        self._write_config()
        self.processes.signal("nats", signal.SIGHUP)
        account = NatsAccount(name, f"nats://{name}:{password}@127.0.0.1:{self.port}")
        wait_until(lambda: self._accepts_login(name, password), 10, lambda: f"NATS did not load the account {name}")
        return account

    @property
    def _config_path(self) -> Path:
        return self.state_dir / "nats.conf"

    def _write_config(self) -> None:
        access = self.access_config or f"accounts {{\n{self._accounts_config()}\n}}"
        limits = f"max_file_store: {MAX_STORE}, max_memory_store: {MAX_STORE}"
        store = f'jetstream {{ store_dir: "{self.state_dir / "jetstream"}", {limits} }}'
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
    access_config: str = "", supervisor_wrapper: Callable[[Path], Sequence[str]] = lambda _state_dir: ()
) -> Iterator[NatsServer]:
    """Run a NATS server. The server and its data are removed when the context ends.

    `supervisor_wrapper` gets the state folder and returns a command that runs the supervisor, for example in a mount
    namespace.
    """
    with scratch_dir("nats") as state_dir:
        server = NatsServer(state_dir, free_port(), access_config=access_config)
        try:
            server.processes.launch(supervisor_wrapper(state_dir), die_with_parent=True)
            server.start()
            yield server
        finally:
            server.processes.shutdown()
