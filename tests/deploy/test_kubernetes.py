"""deploy/kubernetes agrees with itself, with Kubernetes' schemas and with the code it runs."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from backends.settings import PREFIX as BACKEND_PREFIX, read_settings
from gateway.cli.root import main
from gateway.config.load import load_sources
from gateway.config.sources import DocumentSource
from gateway.settings import PREFIX, load_settings

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
# The oldest version that its makers still mend when this was written, and the newest.
VERSIONS = ("1.34", "1.37")
# What an operator makes by hand, as docs/operations.md says.
SECRETS = {
    "sluicegate": {"admin-key", "secret", "backend-token", "cache-url", "state-url"},
    "backends-tls": {"tls.crt", "tls.key", "ca.crt"},
    "gateway-tls": {"tls.crt", "tls.key", "ca.crt"},
}

Json = dict[str, Any]
OBJECTS: list[Json] = [
    document
    for name in KUSTOMIZATION["resources"]
    for document in yaml.safe_load_all((FOLDER / name).read_text())
]


def label(each: Json) -> str:
    return f"{each['kind']}-{each['metadata']['name']}"


def found(kind: str, name: str) -> Json:
    return next(each for each in OBJECTS if label(each) == f"{kind}-{name}")


PODS: dict[str, Json] = {
    each["metadata"]["name"]: each["spec"]["template"]["spec"]
    for each in OBJECTS
    if each["kind"] in ("Deployment", "StatefulSet")
}
CONTAINERS: dict[str, Json] = {
    container["name"]: container for pod in PODS.values() for container in pod["containers"]
}
OURS = [name for name in CONTAINERS if name != "backend"]


def environment(name: str) -> dict[str, str]:
    """Return what a container is told, with a value in the place of what is looked up."""
    return {each["name"]: each.get("value", "x" * 16) for each in CONTAINERS[name]["env"]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("each", OBJECTS, ids=label)
def test_an_object_is_what_kubernetes_takes(each: Json, version: str) -> None:
    kubernetes_validate.validate(each, version, strict=True)


def test_every_file_is_applied() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}

    assert set(KUSTOMIZATION["resources"]) == files


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_the_same_objects() -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", FOLDER],  # noqa: S607 - wherever it is installed
        check=True,
        capture_output=True,
        text=True,
        timeout=60.0,
    ).stdout

    assert sorted(map(label, yaml.safe_load_all(built))) == sorted(map(label, OBJECTS))


def test_everything_is_in_one_namespace() -> None:
    namespace = found("Namespace", KUSTOMIZATION["namespace"])["metadata"]["name"]

    others = [each for each in OBJECTS if each["kind"] != "Namespace"]
    assert {each["metadata"]["namespace"] for each in others} == {namespace}


def test_the_document_is_valid_and_finds_the_backends_by_their_headless_service() -> None:
    config = found("ConfigMap", "gateway-config")["data"]
    service = found("Service", "backends")
    (port,) = service["spec"]["ports"]
    namespace = service["metadata"]["namespace"]

    document = load_sources([DocumentSource(name=name, text=text) for name, text in config.items()])

    (backend,) = [b for r in document.regions for p in r.pools for b in p.backends]
    assert backend.dns == f"backends.{namespace}.svc.cluster.local:{port['port']}"
    assert backend.tls
    assert service["spec"]["clusterIP"] == "None"
    assert document.regions[0].name == environment("backend")["SLUICEGATE_BACKEND_REGION"]


def test_services_and_policies_select_pods_that_exist() -> None:
    labels = {
        each["spec"]["template"]["metadata"]["labels"]["app"]
        for each in OBJECTS
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    text = "".join((FOLDER / name).read_text() for name in KUSTOMIZATION["resources"])

    assert set(re.findall(r"\bapp: ([\w-]+)", text)) == labels
    for each in OBJECTS:
        if each["kind"] == "Service":
            ports = {p["name"] for c in CONTAINERS.values() for p in c.get("ports", [])}
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports


def test_every_pod_is_reached_by_those_that_a_policy_names_and_backends_call_nobody() -> None:
    policies = {
        each["metadata"]["name"]: each["spec"]
        for each in OBJECTS
        if each["kind"] == "NetworkPolicy"
    }
    backends, gateway = policies["backends"], policies["gateway"]

    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert backends["policyTypes"] == ["Ingress", "Egress"]
    assert backends["egress"] == []
    (allowed,) = backends["ingress"]
    assert allowed["from"] == [{"podSelector": {"matchLabels": {"app": "sluicegate-gateway"}}}]
    open_to_all = [each["ports"] for each in gateway["ingress"] if "from" not in each]
    assert open_to_all == [[{"port": "http"}]]


@pytest.mark.parametrize("name", OURS)
def test_a_gateway_process_understands_every_variable_and_its_command(name: str) -> None:
    told = environment(name)

    settings = load_settings(told)
    arguments = CONTAINERS[name]["args"]
    shown = CliRunner().invoke(main, [arguments[0], "--help"])

    assert set(told) <= {PREFIX + field.upper() for field in settings.__struct_fields__}
    assert shown.exit_code == 0
    assert all(word.isdigit() or word in shown.output for word in arguments[1:])


def test_a_backend_understands_every_variable() -> None:
    told = environment("backend")

    settings = read_settings(told)

    assert set(told) <= {BACKEND_PREFIX + field.upper() for field in settings.__struct_fields__}


def test_every_secret_is_one_that_the_operator_is_told_to_make() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    text = "".join((FOLDER / name).read_text() for name in KUSTOMIZATION["resources"])
    referred = set(re.findall(r"secretKeyRef: \{name: ([\w-]+), key: ([\w-]+)\}", text))

    assert {(name, key) for name, key in referred} == {
        ("sluicegate", key) for key in SECRETS["sluicegate"]
    }
    assert set(re.findall(r"secretName: ([\w-]+)", text)) == set(SECRETS) - {"sluicegate"}
    for name, keys in SECRETS.items():
        (command,) = re.findall(rf"create secret generic {name} (.+)", page)
        assert set(re.findall(r"--from-(?:file|literal)=([\w.-]+)", command)) == keys


def test_files_that_are_named_are_mounted() -> None:
    for name, container in CONTAINERS.items():
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        files = [value for value in environment(name).values() if value.startswith("/etc/")]
        assert all(str(Path(file).parent) in paths for file in files)


@pytest.mark.parametrize("pod", PODS)
def test_what_is_mounted_exists(pod: str) -> None:
    claims = [each for each in OBJECTS if each["kind"] == "StatefulSet"]
    templates = {t["metadata"]["name"] for c in claims for t in c["spec"]["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in PODS[pod]["volumes"]} | templates

    mounted = {m["name"] for c in PODS[pod]["containers"] for m in c["volumeMounts"]}

    assert mounted <= volumes


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_runs_as_nobody_special_without_rights(pod: str) -> None:
    spec = PODS[pod]

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", [name for name, each in CONTAINERS.items() if "ports" in each])
def test_whatever_listens_is_probed(name: str) -> None:
    container = CONTAINERS[name]
    ports = {port["name"] for port in container["ports"]}

    paths = {
        kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")
    }

    assert {probe["port"] for probe in paths.values()} <= ports
    assert paths["readiness"]["path"] == "/health/ready"
    assert paths["liveness"]["path"] == paths["startup"]["path"] == "/health/live"
    serves_tls = "SLUICEGATE_BACKEND_TLS_CERTIFICATE" in environment(name)
    assert {probe.get("scheme") for probe in paths.values()} == {"HTTPS" if serves_tls else None}


@pytest.mark.parametrize("name", CONTAINERS)
def test_an_image_is_that_of_compose(name: str) -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()

    assert CONTAINERS[name]["image"] in {service["image"] for service in compose}


def test_stopping_gives_work_in_flight_the_time_it_is_promised() -> None:
    gateway, backend = load_settings(environment("gateway")), read_settings(environment("backend"))

    for pod, container, settings, groups in (
        ("gateway", "gateway", gateway, 3),
        ("backends", "backend", backend, 1),
    ):
        before = CONTAINERS[container]["lifecycle"]["preStop"]["sleep"]["seconds"]
        stopping = settings.shutdown_delay + groups * (settings.drain + 5)
        assert PODS[pod]["terminationGracePeriodSeconds"] > before + stopping


def test_the_processes_of_the_gateway_keep_their_logs_apart_and_share_one_ledger() -> None:
    mounts = {name: CONTAINERS[name]["volumeMounts"] for name in OURS}
    parts = {
        name: {mount["mountPath"]: mount.get("subPath") for mount in own}
        for name, own in mounts.items()
    }
    data = [part["/var/lib/sluicegate"] for part in parts.values()]
    ledgers = {load_settings(environment(name)).ledger for name in ("gateway", "billing")}

    assert len(set(data)) == len(data)
    assert len(ledgers) == 1
    assert found("StatefulSet", "gateway")["spec"]["replicas"] == 1
