"""Builds the CustomResourceDefinition manifests from the CRD definitions of the contract."""

from typing import Any, get_type_hints

from gpu_runtime.contract.crd.markers import CrdDefinition, PrinterColumn
from gpu_runtime.contract.crd.well_known import GROUP, NAME_PATTERN
from gpu_runtime.contract.model_schema import JSONSchema
from gpu_runtime.kube.meta import Manifest
from gpu_runtime.manifests.crd_schema import struct_schema
from gpu_runtime.process.field_docs import class_doc

CATEGORY = "gpu-runtime"


def custom_resource_definition(definition: CrdDefinition[Any]) -> Manifest:
    resource = definition.resource
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": _names(definition),
            "versions": [_version(definition)],
        },
    }


def crd_file_name(definition: CrdDefinition[Any]) -> str:
    return f"{GROUP}_{definition.resource.plural}.yaml"


def _names(definition: CrdDefinition[Any]) -> Manifest:
    resource = definition.resource
    return {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
        "shortNames": list(definition.short_names),
        "categories": [CATEGORY],
    }


def _version(definition: CrdDefinition[Any]) -> Manifest:
    version: Manifest = {
        "name": definition.resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in definition.printer_columns],
        "schema": {"openAPIV3Schema": _root(definition)},
    }
    if definition.selectable_fields:
        version["selectableFields"] = [{"jsonPath": path} for path in definition.selectable_fields]
    return version


def _column(column: PrinterColumn) -> Manifest:
    printer_column = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return printer_column | {"priority": 1} if column.wide else printer_column


def _root(definition: CrdDefinition[Any]) -> JSONSchema:
    model = get_type_hints(definition.resource.model)
    return {
        "description": class_doc(definition.resource.model),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": "The API version of this object.", "type": "string"},
            "kind": {"description": f"Always {definition.resource.kind}.", "type": "string"},
            "metadata": {"type": "object", "properties": {"name": _name(definition.max_name_length)}},
            "spec": struct_schema(model["spec"]),
            "status": struct_schema(model["status"]),
        },
    }


def _name(limit: int) -> JSONSchema:
    return {"type": "string", "pattern": NAME_PATTERN, "maxLength": limit}
