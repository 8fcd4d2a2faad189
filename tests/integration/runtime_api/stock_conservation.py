"""What must hold of stock and units, whatever happened: stock seeded = stock left + units activated from it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from gpu_runtime.contract.crd.well_known import Annotation
from tests.integration.controller_manager.conftest import Object
from tests.integration.runtime_api.live_platform import ApiCaller, ClusterSnapshot, operation_state, until


def conservation_errors(seen: ClusterSnapshot, seeded: Mapping[str, int], deleted: Collection[str] = ()) -> list[str]:
    """All that is not as it must be. Of each flavor so much was seeded; units of these names were deleted."""
    return [
        f"{flavor}: {found}"
        for flavor, count in seeded.items()
        for found in _flavor_errors(seen, flavor, count, deleted)
    ]


def _flavor_errors(seen: ClusterSnapshot, flavor: str, seeded: int, deleted: Collection[str]) -> Iterator[str]:
    left, made = seen.stock_of(flavor), seen.operations_of("CreateUnit", flavor)
    succeeded = [each for each in made if operation_state(each) == "Succeeded"]
    consumed = Counter(each["status"]["stock"]["uid"] for each in succeeded)
    if claimed := [_name(each) for each in left if Annotation.CLAIMED_BY in _annotations(each)]:
        yield f"claimed: {claimed}"
    if half_done := [each["spec"]["operationID"] for each in made if _is_unfinished(each)]:
        yield f"half-done: {half_done}"
    if twice := [uid for uid, times in consumed.items() if times > 1]:
        yield f"given out twice: {twice}"
    if len(left) + len(consumed) != seeded:
        yield f"{seeded} seeded, but {len(left)} are left and {len(consumed)} were consumed"
    yield from _unit_errors(seen.units_of(flavor), succeeded, deleted)


def _unit_errors(units: list[Object], succeeded: list[Object], deleted: Collection[str]) -> Iterator[str]:
    committed = {each["status"]["targetUID"]: each for each in succeeded}
    there = {each["metadata"]["uid"]: each for each in units}
    if strangers := [_name(unit) for uid, unit in there.items() if uid not in committed]:
        yield f"made by no operation: {strangers}"
    targets = [each["spec"]["target"]["name"] for uid, each in committed.items() if uid not in there]
    if lost := [name for name in targets if name not in deleted]:
        yield f"lost: {lost}"
    for uid in there.keys() & committed.keys():
        if _annotations(there[uid]).get(Annotation.SOURCE_STOCK_UID) != committed[uid]["status"]["stock"]["uid"]:
            yield f"{_name(there[uid])} says that it comes from other stock than its operation"


async def wait_conserved(
    caller: ApiCaller, seeded: Mapping[str, int], deleted: Collection[str] = (), seconds: float = 10
) -> float:
    """Wait until everything is in order, and tell how long that took."""
    found: list[str] = []

    async def in_order() -> bool:
        found[:] = conservation_errors(await caller.snapshot(), seeded, deleted)
        return not found

    try:
        return await until(in_order, "order", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None


def _is_unfinished(operation: Object) -> bool:
    status = operation.get("status", {})
    chosen = status if status.get("attempt") else operation["spec"]
    return operation_state(operation) == "RollingBack" or (
        operation_state(operation) == "Running" and bool(chosen.get("stock"))
    )


def _annotations(found: Object) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])
