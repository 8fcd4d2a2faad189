"""A unit with a private image, from a real registry that requires a password."""

import json
from collections.abc import Iterator

import pytest
from lightkube import Client

from localcluster import binaries
from localcluster.node import CONTAINERD_SOCKET, Node
from localcluster.supervisor_client import wait_until
from tests.e2e.controller_manager.test_unit_template_on_a_real_node import NAMESPACE, condition_message, delete_unit
from tests.e2e.controller_manager.test_units_on_a_real_node import apply_manifest, get, unit, wait_ready

# containerd uses plain HTTP only for registries on the loopback interface, here of the node.
REGISTRY = "localhost:5000"
IMAGE = f"{REGISTRY}/private:1"
USER, PASSWORD = "puller", "s3cret-pull"
PASSWORD_FILE = f"{USER}:$2b$05$abcdefghijklmnopqrstuu8YiNQeALDquttzdJ8JTU2sZhhUyTzGK\n"
SLEEP = {"command": ["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"]}


@pytest.fixture(scope="module")
def private_image(deployed_platform: Node) -> Iterator[None]:
    """Run a registry on the node, and push an image to it."""
    node, folder = deployed_platform, deployed_platform.state_dir / "registry"
    folder.mkdir()
    (folder / "htpasswd").write_text(PASSWORD_FILE)
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": "127.0.0.1:5000"},
        "auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    node.processes.start("registry", [binaries.resolve(["registry"])["registry"], "serve", folder / "config.yaml"])
    ctr = ("ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io", "images")
    node.namespaces.run(node.processes, *ctr, "tag", "docker.io/localcluster/private:1", IMAGE)

    def is_pushed() -> bool:
        output = node.namespaces.run(node.processes, *ctr, "push", "--plain-http", f"--user={USER}:{PASSWORD}", IMAGE)
        return "done" in output

    wait_until(is_pushed, 60, lambda: "the image cannot be pushed")
    yield
    node.processes.stop("registry")


def create_pull_secret(node: Node, name: str, password: str) -> None:
    in_namespace = f"--namespace={NAMESPACE}"
    node.kubectl(
        *("create", "secret", "docker-registry", name, f"--docker-server={REGISTRY}", in_namespace),
        *(f"--docker-username={USER}", f"--docker-password={password}"),
    )


def test_private_image_needs_its_password(deployed_platform: Node, kube: Client, private_image: None) -> None:
    node = deployed_platform
    create_pull_secret(node, "unit-pull", PASSWORD)
    create_pull_secret(node, "unit-wrong", "guessed")
    template = SLEEP | {"imagePullSecrets": ["unit-pull"]}
    apply_manifest(node, unit("private", NAMESPACE, image=IMAGE, template=template))
    wait_ready(node, NAMESPACE, "private")
    deployment = get(node, "deployment", NAMESPACE, "private")
    assert deployment
    assert deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    # The image is on the node now. A unit with another password must not get it.
    apply_manifest(
        node, unit("intruder", NAMESPACE, image=IMAGE, template=SLEEP | {"imagePullSecrets": ["unit-wrong"]})
    )
    wait_until(
        lambda: (
            f"image {IMAGE} cannot be pulled" in condition_message(node, "intruder")
            and "401 Unauthorized" in condition_message(node, "intruder")
        ),
        30,
        lambda: condition_message(node, "intruder"),
    )
    delete_unit(node, kube, "intruder")
    delete_unit(node, kube, "private")
    node.kubectl("delete", "secret", "unit-pull", "unit-wrong", f"--namespace={NAMESPACE}")
