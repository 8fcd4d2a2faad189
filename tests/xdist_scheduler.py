"""Distributes tests to two pytest-xdist workers, and runs the tests with a high load one after the other.

All tests of a file run in one worker, because they share fixtures. The tests with a high load, such as those with a
real node, form one group that runs in one worker: two of them at the same time would only slow each other down.
"""

from xdist.scheduler import LoadScopeScheduling

SERIAL_TEST_PATHS = (
    "tests/e2e/",
    "tests/integration/controller_manager/test_many_units.py",
    "tests/integration/runtime_api/handoff/",
    "tests/integration/runtime_api/storages/test_live_storage_races.py",
    "tests/integration/runtime_api/test_openapi_conformance.py",
)


class SerialGroupScheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        """Return the group of a test."""
        return "serial" if is_serial(nodeid) else nodeid.partition("::")[0]


def is_serial(nodeid: str) -> bool:
    return nodeid.startswith(SERIAL_TEST_PATHS)
