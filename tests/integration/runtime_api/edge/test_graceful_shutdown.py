"""A replica that receives SIGTERM drops no request."""

import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from signal import SIGTERM

from localcluster.supervisor_client import wait_until
from tests.integration.runtime_api.edge.conftest import ApiCluster, ApiProcess


def test_slow_in_flight_requests_are_answered_during_shutdown(cluster: ApiCluster, tmp_path: Path) -> None:
    replica, release = cluster.start_replica(limits={"shutdownDelaySeconds": 0.2}).wait_ready(), tmp_path / "release"
    with ThreadPoolExecutor(20) as pool:
        slow = [pool.submit(replica.request, f"/test/held?until={release}", timeout=60) for _ in range(20)]
        try:
            wait_until(lambda: connections(replica) >= 20, 60, lambda: "the requests did not arrive")
            replica.signal(SIGTERM)
            wait_until(lambda: not listens(replica), 60, lambda: "the listener is still open")
        finally:
            release.touch()
        replies = [request.result() for request in slow]
    assert [reply.status for reply in replies] == [200] * 20
    assert {reply.headers["Connection"] for reply in replies} == {"close"}
    assert replica.wait_exit() == 0


def connections(replica: ApiProcess) -> int:
    """The number of established connections on the server side of the API's port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{replica.port:04X}") and row[3] == "01" for row in rows)


def test_readiness_fails_first_and_requests_are_served_during_the_shutdown_delay(cluster: ApiCluster) -> None:
    slow, fast = (
        cluster.start_replica(limits={"shutdownDelaySeconds": 30}),
        cluster.start_replica(limits={"shutdownDelaySeconds": 1}),
    )
    slow.wait_ready().signal(SIGTERM)
    slow.wait_for("/readyz", 503)
    reply = slow.request("/test/units")
    assert (reply.status, reply.headers["Connection"]) == (200, "close")
    fast.wait_ready()
    signalled = time.monotonic()
    fast.signal(SIGTERM)
    assert fast.wait_exit() == 0
    assert time.monotonic() - signalled >= 1


def test_request_on_an_open_connection_is_answered_after_the_listener_closed(cluster: ApiCluster) -> None:
    """On a new or kept-alive connection a request may already be on its way when the listener closes."""
    replica = cluster.start_replica(limits={"shutdownDelaySeconds": 0.2}).wait_ready()
    with connected(replica) as kept_alive, connected(replica) as new:
        kept_alive.request("GET", "/test/units")
        assert kept_alive.getresponse().read().startswith(b'{"data":[')
        new.connect()
        replica.signal(SIGTERM)
        wait_until(lambda: not listens(replica), 60, lambda: "the listener is still open")
        for connection in (kept_alive, new):
            connection.request("GET", "/test/units")
            response = connection.getresponse()
            assert (response.status, response.headers["Connection"]) == (200, "close")
    assert replica.wait_exit() == 0


def connected(replica: ApiProcess) -> "closing[http.client.HTTPConnection]":
    """A connection that is always closed: an open connection of a failed test would make the next test fail."""
    return closing(http.client.HTTPConnection("127.0.0.1", replica.port, timeout=60))


def listens(replica: ApiProcess) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", replica.port)) == 0


def test_callers_that_respect_connection_close_lose_no_request(cluster: ApiCluster) -> None:
    """Each caller uses its connection until a response has `Connection: close`, as a load balancer does."""
    replica = cluster.start_replica(limits={"shutdownDelaySeconds": 1}).wait_ready()
    started = threading.Barrier(9)

    def caller() -> int:
        count = 0
        with connected(replica) as connection:
            while True:
                connection.request("GET", "/test/slow?seconds=0.01")
                response = connection.getresponse()
                assert (response.status, response.read()) == (200, b'{"data":"anonymous"}')
                count += 1
                if count == 1:
                    started.wait()
                if response.headers["Connection"] == "close":
                    return count

    with ThreadPoolExecutor(8) as pool:
        callers = [pool.submit(caller) for _ in range(8)]
        started.wait()
        replica.wait_for("/test/slow?seconds=0.1", 200)
        replica.signal(SIGTERM)
        assert all(future.result() > 1 for future in callers)
    assert replica.wait_exit() == 0
