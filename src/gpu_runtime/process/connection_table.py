"""Decides which connections an HTTP server keeps: a maximum in total and per peer. Nothing here awaits.

If a server rejected connections above a maximum, a client that opens many connections could block all other clients. So
a new connection replaces an older one. Connections that have sent no complete request are replaced first, then idle
connections. A connection with a request in flight is never replaced.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

C = TypeVar("C")


@dataclass(frozen=True)
class ConnectionLimits:
    max_connections: int
    max_connections_per_peer: int


@dataclass
class _Peer(Generic[C]):
    unused: OrderedDict[C, None] = field(default_factory=OrderedDict)
    """Connections without a complete request, in the order in which they were opened."""
    idle: OrderedDict[C, None] = field(default_factory=OrderedDict)
    """Connections that wait for their next request, in the order in which they became idle."""
    busy: set[C] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.unused) + len(self.idle) + len(self.busy)

    def discard(self, connection: C) -> None:
        self.unused.pop(connection, None)
        self.idle.pop(connection, None)
        self.busy.discard(connection)


class ConnectionTable(Generic[C]):
    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._peers: dict[str, _Peer[C]] = {}
        self._peer_names: dict[C, str] = {}

    def __len__(self) -> int:
        return len(self._peer_names)

    def add(self, connection: C, peer: str) -> C | None:
        """Add a new connection. Return the connection to close: an older one, or the new one itself. None if the
        numbers of connections are below the limits."""
        own = self._peers.setdefault(peer, _Peer())
        own.unused[connection] = None
        self._peer_names[connection] = peer
        if len(own) > self._limits.max_connections_per_peer:
            return self._evict(own, connection)
        if len(self) > self._limits.max_connections:
            return self._evict(max(self._peers.values(), key=len), connection)
        return None

    def mark_busy(self, connection: C) -> None:
        if peer := self._find(connection):
            peer.discard(connection)
            peer.busy.add(connection)

    def mark_idle(self, connection: C) -> None:
        if peer := self._find(connection):
            peer.discard(connection)
            peer.idle[connection] = None

    def is_busy(self, connection: C) -> bool:
        peer = self._find(connection)
        return peer is not None and connection in peer.busy

    def remove(self, connection: C) -> None:
        name = self._peer_names.pop(connection, None)
        if name is not None:
            self._peers[name].discard(connection)
            if not len(self._peers[name]):
                del self._peers[name]

    def _find(self, connection: C) -> _Peer[C] | None:
        name = self._peer_names.get(connection)
        return None if name is None else self._peers[name]

    def _evict(self, peer: _Peer[C], newest: C) -> C:
        replaceable = (each for each in chain(peer.unused, peer.idle) if each is not newest)
        victim = next(replaceable, newest)
        self.remove(victim)
        return victim
