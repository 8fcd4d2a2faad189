"""The unit that the pods of an adoptable pool are prepared for. Pure.

The controller manager builds the pods of the pool as pods of this unit. A handoff compares this unit with a request.
"""

import msgspec

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec, Serverless
from gpu_runtime.contract.crd.probes import DEFAULT_READINESS_PROBE, Probes
from gpu_runtime.contract.crd.reservation import reservation_fields
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec


def with_default_probe(probes: Probes | None, serverless: Serverless | None) -> Probes | None:
    """Add a readiness probe of the primary port, unless the caller gives or disables one.

    The unit of a function gets no probe: its worker sidecar reports when the program can accept invocations.
    """
    if serverless is not None or (probes is not None and probes.readiness is not None):
        return probes
    return msgspec.structs.replace(probes or Probes(), readiness=DEFAULT_READINESS_PROBE)


def prepared_unit(pool: StockPoolSpec) -> GPUUnitSpec:
    """Return the spec of the unit that the pods of an adoptable pool are prepared for."""
    return GPUUnitSpec(
        **reservation_fields(pool),
        spec_name=pool.spec_name,
        image=pool.image,
        template=pool.template,
        access=pool.access,
        probes=with_default_probe(pool.probes, None),
    )


def is_adoptable(pool: StockPoolSpec) -> bool:
    """Whether a handoff may take the pods of the pool."""
    return pool.adoptable and not runs_placeholder(pool)


def runs_placeholder(pool: StockPoolSpec) -> bool:
    """Whether the pods of the pool run a placeholder, which is no program of a unit."""
    return not pool.image or not (pool.template.command or pool.template.args)
