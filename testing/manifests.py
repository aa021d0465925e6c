"""Renders overlays of deploy/kubernetes with `kubectl kustomize`, which needs no cluster."""

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any  # a manifest has values of every type

import yaml

FOLDER = Path(__file__).parents[1] / "deploy/kubernetes"
OVERLAYS = ("demo", "minimal", "production/eu", "production/us")
_WORKLOADS = ("Deployment", "StatefulSet")

Manifest = dict[str, Any]


def has_kubectl() -> bool:
    """Return whether this machine has kubectl, which `render` needs."""
    return shutil.which("kubectl") is not None


def render(overlay: str) -> list[Manifest]:
    """Return the objects that `kubectl apply -k` would send.

    Raises:
        ValueError: the overlay cannot be built; the message is kubectl's.
    """
    done = subprocess.run(
        ["kubectl", "kustomize", FOLDER / "overlays" / overlay],  # noqa: S607 - it may be anywhere
        check=False,
        capture_output=True,
        timeout=60.0,
    )
    if done.returncode:
        raise ValueError(f"overlay `{overlay}`: {done.stderr.decode().strip()}")
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def of_kind(manifests: Iterable[Manifest], *kinds: str) -> dict[str, Manifest]:
    """Return the objects whose kind is one of `kinds`, by name."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] in kinds}


def workloads(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    """Return the objects that create pods, such as Deployments, by name."""
    return of_kind(manifests, *_WORKLOADS)


def pod_spec(workload: Manifest) -> Manifest:
    """Return the specification of a workload's pods."""
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


def pod_labels(workload: Manifest) -> dict[str, str]:
    """Return the labels of the pods of a workload."""
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def containers(workload: Manifest) -> list[Manifest]:
    """Return the containers of a workload's pods, including init containers."""
    spec = pod_spec(workload)
    return [*spec.get("initContainers", []), *spec["containers"]]


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a label selector, with `matchLabels` or `In` expressions, matches `labels`."""
    return all(
        labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()
    ) and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )
