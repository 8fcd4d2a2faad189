"""SIGTERM ends a replica without a dropped request."""

import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGTERM

from localcluster.processes import wait_until
from tests.integration.runtime_api.edge.conftest import Cluster, Replica


def test_slow_requests_in_flight_are_answered(cluster: Cluster) -> None:
    replica = cluster.replica(limits={"drainSeconds": 0.2}).wait_ready()
    with ThreadPoolExecutor(20) as pool:
        slow = [pool.submit(replica.ask, "/test/slow?seconds=2", timeout=10) for _ in range(20)]
        wait_until(lambda: connections(replica) >= 20, 10, lambda: "the requests do not arrive")
        replica.signal(SIGTERM)
        wait_until(lambda: replica.ask("/healthz").status == 0, 5, lambda: "the listener does not close")
        assert not any(answer.done() for answer in slow), "the listener closed only after the requests"
        replies = [answer.result() for answer in slow]
    assert [reply.status for reply in replies] == [200] * 20
    assert {reply.headers["Connection"] for reply in replies} == {"close"}
    assert replica.ended() == 0


def connections(replica: Replica) -> int:
    """Established connections to the API's port, as the kernel counts them on the server's side."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{replica.port:04X}") and row[3] == "01" for row in rows)


def test_readiness_goes_first_and_requests_are_taken_until_the_drain_is_over(cluster: Cluster) -> None:
    replica = cluster.replica(limits={"drainSeconds": 1.5}).wait_ready()
    replica.signal(SIGTERM)
    signalled = time.monotonic()
    replica.wait_for("/readyz", 503, timeout=1)
    answer = replica.ask("/test/units")
    assert time.monotonic() - signalled < 1.5, "the machine is too slow for this test"
    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    assert replica.ended() == 0
    assert time.monotonic() - signalled >= 1.5


def test_a_request_that_meets_the_end_of_the_listener_on_an_open_connection_is_answered(cluster: Cluster) -> None:
    """A connection that was made, or kept, has a request on its way that nobody here can know of."""
    replica = cluster.replica(limits={"drainSeconds": 0.2}).wait_ready()
    kept = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=10)
    kept.request("GET", "/test/units")
    assert kept.getresponse().read().startswith(b'{"data":[')
    fresh = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=10)
    fresh.connect()
    replica.signal(SIGTERM)
    wait_until(lambda: not listens(replica), 10, lambda: "the listener does not close")
    for connection in (kept, fresh):
        connection.request("GET", "/test/units")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Connection"]) == (200, "close")
    assert replica.ended() == 0


def listens(replica: Replica) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", replica.port)) == 0


def test_callers_that_leave_when_told_lose_nothing(cluster: Cluster) -> None:
    """As a load balancer does it: each connection is used until its answer says close, and no new one is opened."""
    replica = cluster.replica(limits={"drainSeconds": 1}).wait_ready()
    begun = threading.Barrier(9)

    def caller() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=10)
        begun.wait()
        count = 0
        while True:
            connection.request("GET", "/test/slow?seconds=0.01")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"data":"anonymous"}')
            count += 1
            if answer.headers["Connection"] == "close":
                return count

    with ThreadPoolExecutor(8) as pool:
        callers = [pool.submit(caller) for _ in range(8)]
        begun.wait()
        replica.wait_for("/test/slow?seconds=0.1", 200)
        replica.signal(SIGTERM)
        assert all(done.result() > 1 for done in callers)
    assert replica.ended() == 0
