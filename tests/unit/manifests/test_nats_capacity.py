"""The default sizes of the streams and of the bucket fit into the NATS server that the platform ships."""

import re
from pathlib import Path

import yaml

from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.process.nats_setup import stream_topology
from gpu_runtime.process.shared_settings import NatsSettings

NATS_CONFIG = Path(__file__).parents[3] / "config" / "nats"
GIB = 1024**3
MIN_FREE_PART = 0.1
"""Part of the storage that the streams must not reserve. An operator can raise a limit slightly."""


def reserved_bytes(topology: StreamTopology) -> int:
    """Return the bytes that the server reserves. It rejects a stream whose reservation exceeds its limit."""
    sizes = [*(each.max_bytes for each in topology.streams), topology.record_bucket.max_bytes]
    assert None not in sizes, "a stream without a maximum size can fill the disk"
    return sum(size for size in sizes if size is not None)


def max_file_store() -> int:
    """Return the limit in nats.conf. The server reads GB as 1024**3 bytes."""
    match = re.search(r"^\s*max_file_store: (\d+)GB$", (NATS_CONFIG / "nats.conf").read_text(), re.MULTILINE)
    assert match
    return int(match[1]) * GIB


def volume_bytes() -> int:
    documents = list(yaml.safe_load_all((NATS_CONFIG / "nats.yaml").read_text()))
    (server,) = (each for each in documents if each["kind"] == "StatefulSet")
    (claim,) = server["spec"]["volumeClaimTemplates"]
    match = re.fullmatch(r"(\d+)Gi", claim["spec"]["resources"]["requests"]["storage"])
    assert match
    return int(match[1]) * GIB


def test_default_streams_and_records_fit_into_the_shipped_nats_server() -> None:
    reserved = reserved_bytes(stream_topology(NatsSettings()))
    assert reserved == 8 * GIB
    assert reserved <= (1 - MIN_FREE_PART) * max_file_store()
    assert max_file_store() < volume_bytes()
