"""Every object that deploy/kubernetes makes is one of Kubernetes, or of a custom resource."""

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from testing.manifests import FOLDER, OVERLAYS, Manifest, containers, workloads

# The oldest version that its makers still mend when this was written, and the newest.
VERSIONS = ("1.34", "1.37")
_SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
_CUSTOM: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("custom_resources.yaml").read_text()
)
_METADATA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "namespace"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


@cache
def _definitions(version: str) -> jsonschema_rs.Registry:
    file = _SCHEMAS / f"v{version}.0-local-strict" / "_definitions.json"
    contents = json.loads(file.read_bytes())
    return jsonschema_rs.Registry([(contents["$id"], contents)])


@cache
def _validator(kind: str, api: str, version: str) -> jsonschema_rs.Validator:
    if kind in _CUSTOM:
        custom = _CUSTOM[kind]
        properties = {
            "apiVersion": {"const": custom["apiVersion"]},
            "kind": {"const": kind},
            "metadata": _METADATA,
            "spec": custom["spec"],
        }
        return jsonschema_rs.validator_for(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "additionalProperties": False,
                "required": list(properties),
                "properties": properties,
            }
        )
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api)
    file = _SCHEMAS / f"v{version}.0-local-strict" / f"{kind.lower()}-{group}.json"
    return jsonschema_rs.validator_for(
        json.loads(file.read_bytes()), registry=_definitions(version)
    )


def problems(each: Manifest, version: str) -> list[str]:
    validator = _validator(each["kind"], each["apiVersion"], version)
    return [f"{each['kind']}: {error.message}" for error in validator.iter_errors(each)]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_object_is_what_kubernetes_takes(manifests: list[Manifest], version: str) -> None:
    assert [line for each in manifests for line in problems(each, version)] == []


def test_an_unknown_field_and_a_wrong_type_are_found(manifests: list[Manifest]) -> None:
    changed = copy.deepcopy(workloads(manifests)["gateway"])
    containers(changed)[0]["readinesProbe"] = {}
    containers(changed)[0]["ports"][0]["containerPort"] = "http"

    assert len(problems(changed, VERSIONS[0])) == 2


@pytest.mark.parametrize("kind", _CUSTOM)
def test_an_unknown_field_of_a_custom_resource_is_found(
    manifests: list[Manifest], kind: str
) -> None:
    for each in manifests:
        if each["kind"] == kind:
            changed = {**each, "spec": {**each["spec"], "minReplica": 1}}
            assert problems(changed, VERSIONS[0])


def test_every_folder_of_kubernetes_is_used_by_an_overlay() -> None:
    roots = (FOLDER, FOLDER.parent / "grafana")
    kustomizations = [path.parent for each in roots for path in each.rglob("kustomization.yaml")]
    used = set()

    def follow(folder: Path) -> None:
        used.add(folder)
        found = yaml.safe_load((folder / "kustomization.yaml").read_text())
        for name in [*found.get("resources", []), *found.get("components", [])]:
            if (folder / name).is_dir():
                follow((folder / name).resolve())

    for overlay in OVERLAYS:
        follow(FOLDER / "overlays" / overlay)

    assert set(kustomizations) == used
