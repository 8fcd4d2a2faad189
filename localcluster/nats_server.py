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
from localcluster.paths import scratch
from localcluster.supervisor_client import Processes, wait_until

PROGRAM = Path(sys.executable).with_name("nats-server")
# What streams may reserve together. By itself the server takes three quarters of the disk that is free at its start,
# and then refuses the streams of the next account although nobody has written a byte.
STORE = "1TB"


@dataclass(frozen=True)
class Account:
    """A tenant of the server: its streams, subjects and buckets are nobody else's."""

    name: str
    url: str


@dataclass
class NatsServer:
    state: Path
    port: int
    accounts: dict[str, str] = field(default_factory=lambda: {"nobody": secrets.token_hex(8)})
    """Names and passwords. There is always one: a server without any admits everybody, and cuts them off later."""
    access: str = ""
    """Who may come in, in the words of the server's configuration. Empty: those who have an account."""
    monitor: int = field(default_factory=free_port)
    """Where it answers over HTTP how it is."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @cached_property
    def processes(self) -> Processes:
        return Processes(self.state)

    def start(self) -> None:
        self._write_config()
        self.processes.start("nats", [PROGRAM, "--config", self._config])
        self.processes.wait_for("nats", self._listening)

    def account(self) -> Account:
        """Make an account and return when the server knows it."""
        name, password = f"account-{next(self._numbers)}", secrets.token_hex(8)
        self.accounts[name] = password
        self._write_config()
        self.processes.signal("nats", signal.SIGHUP)
        account = Account(name, f"nats://{name}:{password}@127.0.0.1:{self.port}")
        wait_until(lambda: self._admits(name, password), 10, lambda: f"NATS did not learn of {name}")
        return account

    @property
    def _config(self) -> Path:
        return self.state / "nats.conf"

    def _write_config(self) -> None:
        access = self.access or f"accounts {{\n{self._accounts()}\n}}"
        store = f'jetstream {{ store_dir: "{self.state / "jetstream"}", max_file_store: {STORE} }}'
        text = f"listen: 127.0.0.1:{self.port}\nhttp: 127.0.0.1:{self.monitor}\n{store}\n{access}\n"
        staging = self._config.with_suffix(".new")
        staging.write_text(text)
        staging.rename(self._config)

    def _accounts(self) -> str:
        return "\n".join(
            f'  {name}: {{ jetstream: enabled, users: [{{ user: "{name}", password: "{password}" }}] }}'
            for name, password in self.accounts.items()
        )

    def _listening(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _admits(self, name: str, password: str) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            stream = connection.makefile("rwb")
            stream.readline()
            stream.write(f'CONNECT {{"user":"{name}","pass":"{password}","verbose":false}}\r\nPING\r\n'.encode())
            stream.flush()
            return stream.readline().startswith(b"PONG")


@contextmanager
def nats_server(access: str = "", wrap: Callable[[Path], Sequence[str]] = lambda _state: ()) -> Iterator[NatsServer]:
    """A server of one's own, gone with its data at the end; inside whatever the wrapping command makes of its state."""
    with scratch("nats") as state:
        server = NatsServer(state, free_port(), access=access)
        try:
            server.processes.launch(wrap(state), owned=True)
            server.start()
            yield server
        finally:
            server.processes.shutdown()
