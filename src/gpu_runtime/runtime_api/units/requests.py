"""What callers ask of units."""

from msgspec import field

from gpu_runtime.contract.crd.gpu_unit import Access, GPUUnitSpec, Serverless, StorageMount
from gpu_runtime.contract.crd.workload import Template
from gpu_runtime.runtime_api.http.route import Body


class CreateUnit(Body, frozen=True, kw_only=True):
    """An active unit, made from one Ready stock unit of the same specName, whose memory and GPUs it keeps."""

    operation_id: str = field(name="operationID")
    """The caller's name for this operation. The same request under the same name is made once."""

    name: str
    """The unit's name, and its Service's."""

    namespace: str = ""
    """Where the unit is made. Default: the first namespace that the configuration allows."""

    spec_name: str
    """The flavour, for example g1.1: stock of this flavour is taken."""

    stock_namespace: str = ""
    """Where the stock is taken from. Default: the configured stock namespace, the only one there is."""

    image: str
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
