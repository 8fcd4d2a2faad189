"""The grades of stock, and the decision which pools are prepared for a request. Pure.

A grade says how much of a unit exists before the request:

    prepared   a Ready pod of an adoptable pool already runs the program of the unit
    reserved   a stock unit reserves the GPUs; the program starts after the handoff

A handoff uses the warmest grade that fits the request.
"""

import hashlib
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.reservation import RESERVATION_FIELDS
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec
from gpu_runtime.contract.prepared_units import is_adoptable, prepared_unit
from gpu_runtime.contract.validation.normalize import normalize_unit


class StockGrade(StrEnum):
    """From the warmest to the coldest."""

    PREPARED = "prepared"
    RESERVED = "reserved"

    @classmethod
    def of_source(cls, pool: str | None) -> "StockGrade":
        """Return the grade of the stock that a unit was created from. Only a prepared pod has a pool."""
        return cls.PREPARED if pool else cls.RESERVED


class StockMiss(StrEnum):
    """Why a handoff does not use a grade. A later reason is nearer to a use of the grade."""

    NO_POOL = "no pool"
    """The namespace of the unit has no adoptable pool of the flavor."""
    STORAGE_MOUNTS = "storage mounts"
    """The request mounts storages, which a running pod cannot mount."""
    FUNCTION = "function"
    """The request is for a function, and a running pod cannot get a worker sidecar."""
    IMAGE_DIFFERS = "image differs"
    """No adoptable pool has the image of the request."""
    TEMPLATE_DIFFERS = "template differs"
    """No adoptable pool with the image has the template, access and probes of the request."""
    NONE_READY = "none ready"
    """The grade fits the request, but no stock of the grade is Ready and unclaimed."""


def prepared_for(unit: GPUUnitSpec) -> str:
    """Return a hash of everything that a prepared pod and its unit must have in common."""
    spec = normalize_unit(unit)
    fields = ("spec_name", *RESERVATION_FIELDS, "image", "template", "access", "probes")
    common = {name: getattr(spec, name) for name in fields}
    return hashlib.sha256(msgspec.json.encode(common, order="deterministic")).hexdigest()[:16]


def prepared_miss(requested: GPUUnitSpec, pool: StockPoolSpec) -> StockMiss | None:
    """Return why the pods of the pool are not prepared for the requested unit, or None if they are.

    Two units with the same image, template, access, probes and reservation have the same pod template. The controller
    manager builds both with one function, from these fields and from its settings.
    """
    if not is_adoptable(pool) or pool.spec_name != requested.spec_name:
        return StockMiss.NO_POOL
    if requested.storage_mounts:
        return StockMiss.STORAGE_MOUNTS
    if requested.serverless is not None:
        return StockMiss.FUNCTION
    prepared, unit = normalize_unit(prepared_unit(pool)), normalize_unit(requested)
    if prepared.image != unit.image:
        return StockMiss.IMAGE_DIFFERS
    same = all(getattr(unit, name) == getattr(prepared, name) for name in ("template", "access", "probes"))
    return None if same else StockMiss.TEMPLATE_DIFFERS


def nearest(misses: Iterable[StockMiss]) -> StockMiss:
    """Return the reason that is nearest to a use of the grade, or NO_POOL if there is none."""
    return max(misses, key=list(StockMiss).index, default=StockMiss.NO_POOL)
