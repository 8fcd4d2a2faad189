"""What callers ask of units.

The limits stand here for the document alone: `admission` holds them, with a sentence for each.
"""

from typing import Annotated

from msgspec import UNSET, UnsetType, field

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import Access, GPUUnitSpec, Serverless, StorageMount
from gpu_runtime.contract.crd.markers import openapi
from gpu_runtime.contract.crd.operation import OperationID
from gpu_runtime.contract.crd.template import Count, Image, QuantityString, SpecName, Template
from gpu_runtime.contract.crd.well_known import MAX_NAME_LENGTH, NAME_PATTERN
from gpu_runtime.runtime_api.http.paging import PagedQuery
from gpu_runtime.runtime_api.http.route import Body, Query


class CreateUnit(Body, frozen=True, kw_only=True):
    """An active unit, made from one Ready stock unit of the same specName, whose memory and GPUs it keeps."""

    operation_id: OperationID = field(name="operationID")
    """The caller's name for this operation. The same request under the same name is made once."""

    name: Annotated[str, openapi(pattern=NAME_PATTERN, maxLength=MAX_NAME_LENGTH)]
    """The unit's name, and its Service's."""

    namespace: str = ""
    """Where the unit is made. Default: the first namespace that the configuration allows."""

    spec_name: SpecName
    """The flavor, for example g1.1: stock of this flavor is taken."""

    stock_namespace: str = ""
    """Where the stock is taken from. Default: the configured stock namespace, the only one there is."""

    image: Image
    """The image to run."""

    template: Template = Template()
    """How the image is run."""

    access: Access | None = None
    """How the unit is reached."""

    storage_mounts: tuple[StorageMount, ...] = ()
    """Storages of the same namespace, mounted into the container."""

    serverless: Serverless | None = None
    """Makes the unit a function."""

    def spec(self, memory: str = "", gpu: int = 0) -> GPUUnitSpec:
        """The unit's spec with the envelope of its stock."""
        return GPUUnitSpec(
            spec_name=self.spec_name,
            image=self.image,
            memory=memory,
            gpu=gpu,
            template=self.template,
            access=self.access,
            storage_mounts=self.storage_mounts,
            serverless=self.serverless,
        )


class UpdateUnit(Body, frozen=True, kw_only=True):
    """What is to change. A field that is left out stays as it is; one that is given replaces all that was there."""

    image: Image | UnsetType = UNSET
    """The image to run."""

    template: Template | UnsetType = UNSET
    """How the image is run, as a whole: a command that is not repeated goes away."""

    access: Access | UnsetType = UNSET
    """How the unit is reached, as a whole."""

    storage_mounts: tuple[StorageMount, ...] | UnsetType = UNSET
    """All storages that are mounted from now on. An empty list mounts none."""

    serverless: Serverless | UnsetType = UNSET
    """How the function is served, as a whole. Its requestID never changes once it is set: repeat it."""

    spec_name: SpecName | UnsetType = UNSET
    """Never changes. It may be repeated."""

    memory: QuantityString | UnsetType = UNSET
    """Never changes, since it was reserved with the stock. It may be repeated."""

    gpu: Count | UnsetType = UNSET
    """Never changes, since the GPUs were reserved with the stock. It may be repeated."""


class UnitQuery(Query, frozen=True, kw_only=True):
    """Which of the units of that name."""

    namespace: str = ""
    """Where the unit is. Default: the first namespace that the configuration allows."""


class ListUnits(PagedQuery, frozen=True, kw_only=True):
    """Which units."""

    namespace: str = ""
    """Only those of this namespace. Default: those of every namespace that the configuration allows."""

    spec_name: str = ""
    """Only those of this flavor."""

    phase: UnitPhase | UnsetType = UNSET
    """Only those in this phase."""

    serverless: bool | UnsetType = UNSET
    """true: only functions; false: only units that are none."""
