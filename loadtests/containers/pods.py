"""Plays the pods of an overlay by `podman kube play`, and probes them as a kubelet does.

This differs from a cluster in three ways. A workload has a fixed number of pods with fixed names.
Volume claims and `emptyDir` volumes are named volumes of podman. The name of a service resolves to
all its pods, even to pods that are not ready.
"""

import base64
import copy
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import httpx
import msgspec
import yaml

from loadtests.containers.images import tagged
from loadtests.containers.podman import PodmanError, execute, inspect, names, run
from testing.manifests import (
    Manifest,
    of_kind,
    pod_labels,
    pod_spec,
    selects,
    workloads,
)

PREFIX = "kube-"
NETWORK = "kube-pods"
_NAMESPACE = "sluicegate"
_DOMAIN = f"{_NAMESPACE}.svc.cluster.local"
# These fields are removed, because the images lack the programs with which podman would run the
# probes, or because podman does not know the field.
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
_CLAIMED = "-claim"


class PlayedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that podman plays, under the name that it would have on a cluster."""

    name: str
    objects: tuple[Manifest, ...]
    """The manifests that podman plays: what the pod mounts, and the pod itself last."""
    aliases: tuple[str, ...]
    probes: dict[str, Manifest]
    """The manifest of each container, with its probes, by the container's name."""
    grace: int

    def play(self, folder: Path) -> None:
        """Create and start the pod from a manifest that is written to the private `folder`."""
        aliases = ",".join(f"alias={each}" for each in self.aliases)
        path = folder / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump_all(self.objects))
        run("kube", "play", f"--network={NETWORK}:{aliases}", str(path))

    def remove(self) -> None:
        """Stop the pod within its grace period and remove it; its volume claims stay."""
        for name in self.probes:
            run("stop", "--time", str(self.grace), self.container(name), timeout=self.grace + 60.0)
        run("pod", "rm", "--force", PREFIX + self.name)
        for volume in names("volume", "ls"):
            if volume.startswith(f"{PREFIX}{self.name}-") and not volume.endswith(_CLAIMED):
                run("volume", "rm", volume)

    def pids(self) -> list[int]:
        """Return the id of the first process of each container."""
        return [inspect(self.container(name)).pid for name in self.probes]

    def address(self) -> str:
        """Return the pod's IP address, which is the address of a container of podman's."""
        asked = ("pod", "inspect", "--format", "{{.InfraContainerID}}", PREFIX + self.name)
        return inspect(run(*asked).strip()).address[NETWORK]

    def container(self, name: str) -> str:
        """Return podman's name of a container."""
        return f"{PREFIX}{self.name}-{name}"

    def passes(self, probe: str) -> bool:
        """Return whether every container that has a probe of this kind passes it now."""
        found = ((name, each.get(probe)) for name, each in self.probes.items())
        return all(self._passes(name, each) for name, each in found if each is not None)

    def _passes(self, name: str, probe: Manifest) -> bool:
        timeout = float(probe.get("timeoutSeconds", 1))
        try:
            if "exec" in probe:
                execute(self.container(name), *probe["exec"]["command"], timeout=timeout + 5)
                return True
            ports = {each["name"]: each["containerPort"] for each in self.probes[name]["ports"]}
            asked = probe["httpGet"]
            scheme = asked.get("scheme", "HTTP").lower()
            url = f"{scheme}://{self.address()}:{ports[asked['port']]}{asked['path']}"
            return httpx.get(url, timeout=timeout, verify=False).is_success  # noqa: S501
        except (httpx.TransportError, PodmanError, subprocess.TimeoutExpired, KeyError):
            return False


def prepare(secret: str, values: Mapping[str, str], folder: Path) -> None:
    """Create the network, and the secret that pods read as variables."""
    remove_everything()
    run("network", "create", NETWORK)
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    path = folder / f"{secret}.json"
    path.write_bytes(msgspec.json.encode(encoded))
    run("secret", "create", PREFIX + secret, str(path))


def remove_everything() -> None:
    """Remove every played pod and all volumes, secrets and the network."""
    for kind in ("pod", "volume", "secret", "network"):
        options = ("--force", "--time", "1") if kind == "pod" else ()
        for name in names(kind, "ls"):
            if name.startswith(PREFIX):
                run(kind, "rm", *options, name)


def dependencies() -> Iterator[PlayedPod]:
    """Yield the pods of dependencies.yaml."""
    path = Path(__file__).with_name("dependencies.yaml")
    found = list(yaml.safe_load_all(path.read_text()))
    for name, each in of_kind(found, "Pod").items():
        yield _played(name, each["spec"], each["metadata"]["labels"], (name,), found, {}, "")


def pods(
    manifests: Iterable[Manifest], secrets: Mapping[str, Mapping[str, str]], *, tag: str
) -> Iterator[PlayedPod]:
    """Yield the pods of all workloads, with images of the tag `tag`.

    `secrets` has the contents of the secrets that the workloads name.
    """
    manifests = list(manifests)
    services = of_kind(manifests, "Service")
    for name, workload in workloads(manifests).items():
        labels = pod_labels(workload)
        chosen = [
            service
            for service, each in services.items()
            if selects({"matchLabels": each["spec"]["selector"]}, labels)
        ]
        spec = copy.deepcopy(pod_spec(workload))
        for template in workload["spec"].get("volumeClaimTemplates", []):
            volume = {"name": template["metadata"]["name"], "persistentVolumeClaim": {}}
            spec["volumes"].append(volume)
        for number in range(workload["spec"]["replicas"]):
            own = f"{name}-{number}"
            aliases = (own, *chosen, *(f"{each}.{_DOMAIN}" for each in chosen))
            yield _played(own, spec, labels, aliases, manifests, secrets, tag)


def _played(
    name: str,
    spec: Manifest,
    labels: Mapping[str, str],
    aliases: tuple[str, ...],
    manifests: Iterable[Manifest],
    secrets: Mapping[str, Mapping[str, str]],
    tag: str,
) -> PlayedPod:
    maps = of_kind(manifests, "ConfigMap")
    probes = {each["name"]: each for each in spec["containers"]}
    spec = copy.deepcopy(spec) | {"hostname": name}
    for container in spec["containers"]:
        if "/" not in container["image"]:
            container["image"] = tagged(f"localhost/{container['image']}", tag)
        container["imagePullPolicy"] = "Never"
        # Every source in `envFrom` is optional, and none of them exists in this network.
        container.pop("envFrom", None)
        for field in _PROBES:
            container.pop(field, None)
        # Podman publishes every port on this machine, under the same number unless another one is
        # set.
        container["ports"] = [each for each in container.get("ports", []) if "hostPort" in each]
        for variable in container.get("env", []):
            if "secretKeyRef" in (reference := variable.get("valueFrom", {})):
                reference["secretKeyRef"]["name"] = PREFIX + reference["secretKeyRef"]["name"]
        for mount in container.get("volumeMounts", []):
            mount["name"] = f"{PREFIX}{name}-{mount['name']}"
    mounted = [
        _mounted(volume, f"{PREFIX}{name}-{volume['name']}", maps, secrets)
        for volume in spec.get("volumes", [])
    ]
    pod = _object("Pod", PREFIX + name, {"spec": spec})
    pod["metadata"]["labels"] = dict(labels)
    return PlayedPod(
        name=name,
        objects=(*maps.values(), *filter(None, mounted), pod),
        aliases=aliases,
        probes=probes,
        grace=int(spec.get("terminationGracePeriodSeconds", 30)),
    )


def _mounted(
    volume: Manifest,
    name: str,
    maps: Mapping[str, Manifest],
    secrets: Mapping[str, Mapping[str, str]],
) -> Manifest | None:
    """Rename a volume, and return the object from which it is made, if there is one.

    Podman names the volume of each `emptyDir`, config map and secret after the object, so each
    object needs a name of its own.
    """
    volume["name"] = name
    if "persistentVolumeClaim" in volume:
        volume["persistentVolumeClaim"] = {"claimName": name + _CLAIMED}
    elif "configMap" in volume or "secret" in volume:
        if "configMap" in volume:
            contents = maps[volume["configMap"]["name"]]["data"]
        else:
            # Podman 4.3 would write the files of a secret in base64.
            contents = secrets[volume.pop("secret")["secretName"]]
        volume["configMap"] = {"name": name, "optional": False}
        return _object("ConfigMap", name, {"data": dict(contents)})
    return None


def _object(kind: str, name: str, contents: Manifest) -> Manifest:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **contents}
