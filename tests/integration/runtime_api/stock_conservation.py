"""The conservation of stock: seeded stock units = remaining ones + units created from them + withdrawn ones.

A unit from a prepared pod uses no stock unit.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from gpu_runtime.contract.crd.well_known import Annotation
from tests.integration.controller_manager.conftest import Object
from tests.integration.runtime_api.live_platform import ApiCaller, ClusterSnapshot, operation_state, until


def conservation_errors(
    snapshot: ClusterSnapshot,
    seeded: Mapping[str, int],
    deleted: Collection[str] = (),
    withdrawn: Mapping[str, int] | None = None,
) -> list[str]:
    """The violations of the conservation of stock.

    `seeded` and `withdrawn` have the number of seeded and withdrawn stock units by flavor. `deleted` has the names of
    the units that were deleted.
    """
    return [
        f"{flavor}: {error}"
        for flavor, count in seeded.items()
        for error in _flavor_errors(snapshot, flavor, count, deleted, (withdrawn or {}).get(flavor, 0))
    ]


def consumed_stock(snapshot: ClusterSnapshot, flavor: str) -> list[Object]:
    """The stock of all operations that have created a unit: stock units, and prepared pods, which have a pool."""
    operations = snapshot.operations_of("CreateUnit", flavor)
    return [dict(each["status"]["stock"]) for each in operations if operation_state(each) == "Succeeded"]


def _flavor_errors(
    snapshot: ClusterSnapshot, flavor: str, seeded: int, deleted: Collection[str], withdrawn: int
) -> Iterator[str]:
    remaining, operations = snapshot.stock_of(flavor), snapshot.operations_of("CreateUnit", flavor)
    succeeded = [each for each in operations if operation_state(each) == "Succeeded"]
    sources = consumed_stock(snapshot, flavor)
    consumed = {each["uid"] for each in sources if not each.get("pool")}
    if claimed := [_name(each) for each in remaining if Annotation.CLAIMED_BY in _annotations(each)]:
        yield f"stock units are still claimed: {claimed}"
    if unfinished := [each["spec"]["operationID"] for each in operations if _is_unfinished(each)]:
        yield f"operations are not finished: {unfinished}"
    if reused := [uid for uid, count in Counter(each["uid"] for each in sources).items() if count > 1]:
        yield f"stock was consumed by several operations: {reused}"
    if len(remaining) + len(consumed) + withdrawn != seeded:
        yield (
            f"{seeded} stock units were seeded, but {len(remaining)} remain, {len(consumed)} were consumed and "
            f"{withdrawn} were withdrawn"
        )
    yield from _unit_errors(snapshot.units_of(flavor), succeeded, deleted)


def _unit_errors(units: list[Object], succeeded: list[Object], deleted: Collection[str]) -> Iterator[str]:
    committed = {each["status"]["targetUID"]: each for each in succeeded}
    existing = {each["metadata"]["uid"]: each for each in units}
    if orphans := [_name(unit) for uid, unit in existing.items() if uid not in committed]:
        yield f"units exist that no operation committed to: {orphans}"
    targets = [each["spec"]["target"]["name"] for uid, each in committed.items() if uid not in existing]
    if lost := [name for name in targets if name not in deleted]:
        yield f"units are missing that were not deleted: {lost}"
    for uid in existing.keys() & committed.keys():
        if _annotations(existing[uid]).get(Annotation.SOURCE_STOCK_UID) != committed[uid]["status"]["stock"]["uid"]:
            yield f"unit {_name(existing[uid])} has another source stock UID than its operation"


async def wait_conserved(
    caller: ApiCaller, seeded: Mapping[str, int], deleted: Collection[str] = (), seconds: float = 10
) -> float:
    """Wait until there are no violations. Returns how long that took, in seconds."""
    violations: list[str] = []

    async def is_conserved() -> bool:
        violations[:] = conservation_errors(await caller.snapshot(), seeded, deleted)
        return not violations

    try:
        return await until(is_conserved, "stock is conserved", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {violations}") from None


def _is_unfinished(operation: Object) -> bool:
    status = operation.get("status", {})
    current = status if status.get("attempt") else operation["spec"]
    return operation_state(operation) == "RollingBack" or (
        operation_state(operation) == "Running" and bool(current.get("stock"))
    )


def _annotations(subject: Object) -> dict[str, str]:
    return subject["metadata"].get("annotations") or {}


def _name(subject: Object) -> str:
    return str(subject["metadata"]["name"])
