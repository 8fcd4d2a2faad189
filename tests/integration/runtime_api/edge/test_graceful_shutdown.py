"""SIGTERM ends a replica without a dropped request."""

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
            wait_until(lambda: connections(replica) >= 20, 60, lambda: "the requests do not arrive")
            replica.signal(SIGTERM)
            wait_until(lambda: not listens(replica), 60, lambda: "the listener waits for the requests")
        finally:
            release.touch()
        replies = [answer.result() for answer in slow]
    assert [reply.status for reply in replies] == [200] * 20
    assert {reply.headers["Connection"] for reply in replies} == {"close"}
    assert replica.wait_exit() == 0


def connections(replica: ApiProcess) -> int:
    """Established connections to the API's port, as the kernel counts them on the server's side."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{replica.port:04X}") and row[3] == "01" for row in rows)


def test_readiness_fails_first_and_requests_are_served_during_the_shutdown_delay(cluster: ApiCluster) -> None:
    draining, brief = (
        cluster.start_replica(limits={"shutdownDelaySeconds": 30}),
        cluster.start_replica(limits={"shutdownDelaySeconds": 1}),
    )
    draining.wait_ready().signal(SIGTERM)
    draining.wait_for("/readyz", 503)
    answer = draining.request("/test/units")
    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    brief.wait_ready()
    signalled = time.monotonic()
    brief.signal(SIGTERM)
    assert brief.wait_exit() == 0
    assert time.monotonic() - signalled >= 1


def test_request_on_an_open_connection_is_answered_after_the_listener_closed(cluster: ApiCluster) -> None:
    """A connection that was made, or kept, has a request on its way that nobody here can know of."""
    replica = cluster.start_replica(limits={"shutdownDelaySeconds": 0.2}).wait_ready()
    with connected(replica) as kept, connected(replica) as fresh:
        kept.request("GET", "/test/units")
        assert kept.getresponse().read().startswith(b'{"data":[')
        fresh.connect()
        replica.signal(SIGTERM)
        wait_until(lambda: not listens(replica), 60, lambda: "the listener does not close")
        for connection in (kept, fresh):
            connection.request("GET", "/test/units")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
    assert replica.wait_exit() == 0


def connected(replica: ApiProcess) -> "closing[http.client.HTTPConnection]":
    """Closed whatever happens: what a failed test leaves open fails the next one."""
    return closing(http.client.HTTPConnection("127.0.0.1", replica.port, timeout=60))


def listens(replica: ApiProcess) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", replica.port)) == 0


def test_callers_that_respect_connection_close_lose_no_request(cluster: ApiCluster) -> None:
    """As a load balancer does it: each connection is used until its answer says close, and no new one is opened."""
    replica = cluster.start_replica(limits={"shutdownDelaySeconds": 1}).wait_ready()
    begun = threading.Barrier(9)

    def caller() -> int:
        count = 0
        with connected(replica) as connection:
            while True:
                connection.request("GET", "/test/slow?seconds=0.01")
                answer = connection.getresponse()
                assert (answer.status, answer.read()) == (200, b'{"data":"anonymous"}')
                count += 1
                if count == 1:
                    begun.wait()
                if answer.headers["Connection"] == "close":
                    return count

    with ThreadPoolExecutor(8) as pool:
        callers = [pool.submit(caller) for _ in range(8)]
        begun.wait()
        replica.wait_for("/test/slow?seconds=0.1", 200)
        replica.signal(SIGTERM)
        assert all(done.result() > 1 for done in callers)
    assert replica.wait_exit() == 0
