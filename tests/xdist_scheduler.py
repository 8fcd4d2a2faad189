"""Two tests at a time, in two processes, but never two of those that make a machine busy.

Tests of one file run in one process, one after the other, since they share what they have started. Of two that load an
API server, or two real nodes, each would only wait for the other.
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
        """What runs in one process. The busy ones are collected first, and so begin at once."""
        return "busy" if nodeid.startswith(SERIAL_TEST_PATHS) else nodeid.partition("::")[0]
