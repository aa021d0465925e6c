"""`make check-kubernetes` plays the pods of an overlay, each with volumes and names of its own."""

import copy
from pathlib import Path

from loadtests.kubernetes.pods import PlayedPod, dependencies, pods
from testing.manifests import Manifest, workloads
from tests.deploy.compose_file import SERVICES

ROOT = Path(__file__).resolve().parents[2]
_SECRETS = {name: {"tls.crt": "x"} for name in ("gateway-tls", "backends-tls")}


def played(manifests: list[Manifest]) -> list[PlayedPod]:
    # Other tests look at the same objects; an autoscaler writes the number where none is.
    manifests = copy.deepcopy(manifests)
    for each in workloads(manifests).values():
        each["spec"].setdefault("replicas", 2)
    return list(pods(manifests, _SECRETS))


def spec(pod: PlayedPod) -> Manifest:
    found: Manifest = pod.objects[-1]["spec"]
    return found


def test_each_pod_has_volumes_of_its_own_that_it_mounts(manifests: list[Manifest]) -> None:
    volumes = [volume["name"] for pod in played(manifests) for volume in spec(pod)["volumes"]]

    assert len(set(volumes)) == len(volumes)
    for pod in played(manifests):
        names = {volume["name"] for volume in spec(pod)["volumes"]}
        for container in spec(pod)["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= names


def test_a_pod_keeps_its_restrictions_and_opens_no_port_of_this_machine(
    manifests: list[Manifest],
) -> None:
    for pod in played(manifests):
        assert spec(pod)["securityContext"]["runAsUser"] == 10001
        for container in spec(pod)["containers"]:
            assert container["ports"] == []
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"] == pod.probes[container["name"]]["resources"]


def test_the_names_of_services_lead_to_pods_that_they_select(manifests: list[Manifest]) -> None:
    aliases = {pod.name: pod.aliases for pod in played(manifests)}

    assert {"gateway-1", "gateway", "gateway-pods"} <= set(aliases["gateway-1"])
    assert all(
        f"{name.rpartition('-')[0]}.sluicegate.svc.cluster.local" in found
        for name, found in aliases.items()
    )


def test_what_the_pods_depend_on_has_the_images_of_compose() -> None:
    images = {service["image"] for service in SERVICES.values()}

    found = dependencies(ROOT / "loadtests/kubernetes/dependencies.yaml")

    for pod in found:
        for container in spec(pod)["containers"]:
            assert container["image"].removeprefix("docker.io/library/") in images
