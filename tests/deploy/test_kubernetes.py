"""What deploy/kubernetes makes agrees with itself, and with the code that it runs."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path

import click
from click.testing import CliRunner

from sluicegate.backends.cli import main as backend_main
from sluicegate.backends.settings import PREFIX as BACKEND_PREFIX, read_settings
from sluicegate.gateway.cli.root import main
from sluicegate.gateway.config.load import load_sources
from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.settings import PREFIX, load_settings
from testing.manifests import (
    Manifest,
    containers,
    of_kind,
    pod_labels,
    pod_spec,
    selects,
    workloads,
)
from tests.deploy.compose_file import SERVICES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/kubernetes.md").read_text()


def every(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    for workload in workloads(manifests).values():
        for container in containers(workload):
            yield workload, container


def is_own(container: Manifest) -> bool:
    """Return whether a container runs this project, and no database."""
    return "sluicegate-" in container["image"]


def own(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    return (pair for pair in every(manifests) if is_own(pair[1]))


def environment(
    container: Manifest, manifests: Iterable[Manifest], *, secret: str = "x" * 16
) -> dict[str, str]:
    """Return the variables of a container; `secret` stands for each value of a secret."""
    maps = {name: each["data"] for name, each in of_kind(manifests, "ConfigMap").items()}
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        if "configMapRef" in source:
            found |= maps.get(source["configMapRef"]["name"], {})
    return found | dict(_variables(container.get("env", []), maps, secret))


def _variables(
    variables: Iterable[Manifest], maps: Mapping[str, Mapping[str, str]], secret: str
) -> Iterator[tuple[str, str]]:
    for each in variables:
        reference = each.get("valueFrom", {}).get("configMapKeyRef")
        if reference is not None:
            yield each["name"], maps[reference["name"]][reference["key"]]
        else:
            yield each["name"], each.get("value", secret)


def told(container: Manifest, manifests: list[Manifest]) -> dict[str, str]:
    """Return the variables that a process of ours reads."""
    found = environment(container, manifests)
    return {name: value for name, value in found.items() if name.startswith(PREFIX)}


def secrets(manifests: list[Manifest]) -> dict[str, set[str]]:
    """Return the keys of each secret: of the demo's own, or those from a store, or made by hand."""
    if contained := of_kind(manifests, "Secret"):
        return {name: set(each["data"]) for name, each in contained.items()}
    external = of_kind(manifests, "ExternalSecret").values()
    if external:
        return {
            each["spec"]["target"]["name"]: {data["secretKey"] for data in each["spec"]["data"]}
            for each in external
        }
    commands = re.findall(r"create secret (?:generic|tls) ([\w-]+) (.+)", PAGE)
    return {
        name: set(re.findall(r"--from-(?:file|literal)=([\w.-]+)", rest)) for name, rest in commands
    }


def is_encrypted(manifests: list[Manifest]) -> bool:
    """Return whether gateways and backends use TLS, which the demo does not."""
    return "backends-tls" in secrets(manifests)


def test_everything_is_in_one_namespace_that_admits_restricted_pods(
    manifests: list[Manifest],
) -> None:
    ((name, namespace),) = of_kind(manifests, "Namespace").items()

    others = [each for each in manifests if each["kind"] != "Namespace"]
    assert {each["metadata"]["namespace"] for each in others} == {name}
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_document_is_valid_and_finds_each_pool_by_its_headless_service(
    manifests: list[Manifest],
) -> None:
    config = of_kind(manifests, "ConfigMap")["gateway-config"]["data"]
    services = of_kind(manifests, "Service")
    pools = {
        name: each for name, each in workloads(manifests).items() if each["kind"] == "Deployment"
    }
    scaled_to_zero = {
        name.removeprefix("backend-")
        for name, each in of_kind(manifests, "ScaledObject").items()
        if each["spec"]["minReplicaCount"] == 0
    }

    document = load_sources([DocumentSource(name=name, text=text) for name, text in config.items()])

    (region,) = document.regions
    for pool in region.pools:
        (backend,) = pool.backends
        name = f"backend-{pool.name}"
        service = services[name]
        (port,) = service["spec"]["ports"]
        assert service["spec"]["clusterIP"] == "None"
        assert backend.dns == f"{name}.sluicegate.svc.cluster.local:{port['port']}"
        assert backend.tls == is_encrypted(manifests)
        assert pod_labels(pools[name])["sluicegate/region"] == region.name
        assert pool.overflow == (pool.name in scaled_to_zero)
    assert {f"backend-{pool.name}" for pool in region.pools} == set(pools)


def test_the_gateways_of_several_regions_have_the_name_of_theirs(
    manifests: list[Manifest],
) -> None:
    regions = {
        settings.region
        for name, container in [(w["metadata"]["name"], c) for w, c in own(manifests)]
        if name in ("gateway", "batches") and container["name"] == name
        for settings in [load_settings(told(container, manifests))]
    }
    pools = {pod_labels(w).get("sluicegate/region", "") for w, _ in own(manifests)} - {""}

    assert regions in ({""}, pools)


def test_a_selector_takes_pods_that_have_the_ports_it_names(manifests: list[Manifest]) -> None:
    pods = [(pod_labels(each), each) for each in workloads(manifests).values()]

    def ports(selector: Manifest) -> set[str]:
        chosen = [workload for labels, workload in pods if selects(selector, labels)]
        assert chosen, selector
        return {p["name"] for w in chosen for c in containers(w) for p in c.get("ports", [])}

    for service in of_kind(manifests, "Service").values():
        named = {port["targetPort"] for port in service["spec"].get("ports", [])}
        assert named <= ports({"matchLabels": service["spec"]["selector"]})
    for monitor in of_kind(manifests, "PodMonitor").values():
        spec = monitor["spec"]
        assert {each["port"] for each in spec["podMetricsEndpoints"]} <= ports(spec["selector"])
    for policy in of_kind(manifests, "NetworkPolicy").values():
        spec = policy["spec"]
        for rule in spec.get("ingress", []):
            assert {port["port"] for port in rule["ports"]} <= ports(spec["podSelector"])
    for budget in of_kind(manifests, "PodDisruptionBudget").values():
        ports(budget["spec"]["selector"])


def test_a_workload_selects_and_spreads_its_own_pods_alone(manifests: list[Manifest]) -> None:
    every = workloads(manifests)
    budgets = of_kind(manifests, "PodDisruptionBudget").values()
    for name, workload in every.items():
        spread = pod_spec(workload).get("topologySpreadConstraints", [])
        selectors = [workload["spec"]["selector"], *(each["labelSelector"] for each in spread)]
        for selector in selectors:
            taken = [n for n, each in every.items() if selects(selector, pod_labels(each))]
            assert taken == [name]
        if workload["spec"].get("replicas") != 1:
            assert {each["topologyKey"] for each in spread} == {
                "topology.kubernetes.io/zone",
                "kubernetes.io/hostname",
            }
            assert any(selects(b["spec"]["selector"], pod_labels(workload)) for b in budgets)
        if workload["kind"] == "StatefulSet":
            assert of_kind(manifests, "Service")[workload["spec"]["serviceName"]]


def test_a_pod_is_reached_by_those_that_a_policy_names_and_backends_call_nobody(
    manifests: list[Manifest],
) -> None:
    policies = {name: p["spec"] for name, p in of_kind(manifests, "NetworkPolicy").items()}
    backends, gateway = policies["backends"], policies["gateway"]

    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert backends["policyTypes"] == ["Ingress", "Egress"]
    assert not backends.get("egress")
    (allowed,) = backends["ingress"]
    assert [each["podSelector"]["matchLabels"]["app"] for each in allowed["from"]] == [
        "sluicegate-gateway",
        "sluicegate-batches",
    ]
    open_to_all = [each["ports"] for each in gateway["ingress"] if "from" not in each]
    assert open_to_all == [[{"port": "http"}]]


def test_whatever_is_referred_to_exists(manifests: list[Manifest]) -> None:
    maps = {name: set(each["data"]) for name, each in of_kind(manifests, "ConfigMap").items()}
    kept = secrets(manifests)
    for workload, container in own(manifests):
        for source in container.get("envFrom", []):
            for kind, known in (("configMapRef", maps), ("secretRef", kept)):
                if kind in source and not source[kind].get("optional"):
                    assert source[kind]["name"] in known
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {})
            for kind, known in (("configMapKeyRef", maps), ("secretKeyRef", kept)):
                if kind in reference and not reference[kind].get("optional"):
                    assert reference[kind]["key"] in known[reference[kind]["name"]]
        volumes = {volume["name"] for volume in pod_spec(workload)["volumes"]}
        volumes |= {
            each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])
        }
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        files = [v for v in told(container, manifests).values() if v.startswith("/etc/")]
        assert all(str(Path(file).parent) in paths for file in files)


def test_no_pod_of_a_backend_holds_the_secret_of_tenants_files(manifests: list[Manifest]) -> None:
    holders = {
        workload["metadata"]["name"]
        for workload, container in own(manifests)
        for source in container.get("envFrom", [])
        if source.get("secretRef", {}).get("name") == "sluicegate-storage"
    }

    assert holders == {"gateway", "batches"} & set(workloads(manifests))


def test_a_volume_is_of_something_that_exists(manifests: list[Manifest]) -> None:
    for workload in workloads(manifests).values():
        for volume in pod_spec(workload)["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets(manifests)
            elif "configMap" in volume:
                assert volume["configMap"]["name"] in of_kind(manifests, "ConfigMap")
            elif "persistentVolumeClaim" in volume:
                name = volume["persistentVolumeClaim"]["claimName"]
                assert name in of_kind(manifests, "PersistentVolumeClaim")
            else:
                assert "emptyDir" in volume or volume["image"]["reference"]


def test_what_scales_names_a_workload_without_a_number_of_its_own(
    manifests: list[Manifest],
) -> None:
    for each in of_kind(manifests, "ScaledObject", "HorizontalPodAutoscaler").values():
        target = each["spec"]["scaleTargetRef"]
        workload = workloads(manifests)[target["name"]]
        assert workload["kind"] == target["kind"]
        assert "replicas" not in workload["spec"], "what scales writes the number"


def test_an_ingress_leads_to_a_port_of_the_gateways(manifests: list[Manifest]) -> None:
    services, kept = of_kind(manifests, "Service"), secrets(manifests)
    for ingress in of_kind(manifests, "Ingress").values():
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                service = path["backend"]["service"]
                ports = {port["name"] for port in services[service["name"]]["spec"]["ports"]}
                assert service["port"]["name"] in ports
        assert {each["secretName"] for each in ingress["spec"]["tls"]} <= set(kept)


def test_a_route_leads_from_a_listener_to_a_port_of_the_gateways(
    manifests: list[Manifest],
) -> None:
    services, kept = of_kind(manifests, "Service"), secrets(manifests)
    for route in of_kind(manifests, "HTTPRoute").values():
        for parent in route["spec"]["parentRefs"]:
            listeners = of_kind(manifests, "Gateway")[parent["name"]]["spec"]["listeners"]
            (listener,) = [each for each in listeners if each["name"] == parent["sectionName"]]
            assert [listener["hostname"]] == route["spec"]["hostnames"]
            assert {each["name"] for each in listener["tls"]["certificateRefs"]} <= set(kept)
        for rule in route["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                ports = {port["port"] for port in services[backend["name"]]["spec"]["ports"]}
                assert backend["port"] in ports


def test_a_process_understands_every_variable(manifests: list[Manifest]) -> None:
    gateway = {PREFIX + field.upper() for field in load_settings({}).__struct_fields__}
    backend = {BACKEND_PREFIX + field.upper() for field in read_settings({}).__struct_fields__}
    for _, container in own(manifests):
        found = told(container, manifests)
        if container["name"] == "backend":
            assert set(found) <= backend
            read_settings(found)
        else:
            assert set(found) <= gateway
            load_settings(found)


def test_a_container_runs_a_command_that_exists(manifests: list[Manifest]) -> None:
    for _, container in own(manifests):
        words = container.get("args", [])
        if "command" in container:
            words = container["command"][-1].partition("exec sluicegate ")[2].split()
        group: click.Command = backend_main if "backend" in container["image"] else main
        path = list(takewhile(lambda word: word[0] not in "-$/", words))
        shown = CliRunner().invoke(group, [*path, "--help"]).output
        assert all(w.isdigit() or w[0] in "$/" or w in shown for w in words), shown
        assert "Error: " not in shown, shown


def test_a_job_creates_the_ledger_that_all_others_use(manifests: list[Manifest]) -> None:
    job = of_kind(manifests, "Job")["ledger-init"]
    (container,) = pod_spec(job)["containers"]
    others = [each for _, each in own(manifests) if "gateway" in each["image"]]

    assert container["command"] == ["sluicegate", "ledger", "init"]
    assert container["image"] in {each["image"] for each in others}
    variables = {each["name"]: each["valueFrom"] for each in container["env"]}
    for other in others:
        shared = [each for each in other.get("env", []) if each["name"] in variables]
        assert all(each["valueFrom"] == variables[each["name"]] for each in shared)
    # An image that is another may be applied as soon as the Job of before is gone.
    assert job["spec"]["ttlSecondsAfterFinished"] <= 300
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod_spec(job)["securityContext"]["runAsNonRoot"] is True


def test_every_secret_is_one_that_the_operator_is_told_to_make(manifests: list[Manifest]) -> None:
    commands = dict(re.findall(r"create secret (?:generic|tls) ([\w-]+) (.+)", PAGE))

    for name, keys in secrets(manifests).items():
        of_tls = commands[name].startswith("--cert")
        said = set(re.findall(r"--from-(?:file|literal)=([\w.-]+)", commands[name]))
        assert keys == said or (of_tls and keys <= {"tls.crt", "tls.key"})


def test_a_container_is_restricted(manifests: list[Manifest]) -> None:
    for workload, container in every(manifests):
        spec, of_container = pod_spec(workload), container["securityContext"]
        user = (spec["securityContext"] | of_container)["runAsUser"]
        assert user == 10001 or not is_own(container)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert of_container["readOnlyRootFilesystem"] is True
        assert of_container["allowPrivilegeEscalation"] is False
        assert of_container["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


def test_probes_tell_stuck_from_slow(manifests: list[Manifest]) -> None:
    for workload, container in own(manifests):
        if container in pod_spec(workload).get("initContainers", []):
            continue
        live = container["livenessProbe"]
        if "ports" not in container:
            heartbeat = re.search(r"exec 3>(\S+) ", container["command"][-1])
            assert heartbeat is not None
            assert f"stat -c %Y {heartbeat[1]})" in live["exec"]["command"][-1]
            assert told(container, manifests)["SLUICEGATE_HEARTBEAT_FD"] == "3"
            continue
        ready, start = container["readinessProbe"], container["startupProbe"]
        assert {each["httpGet"]["port"] for each in (live, ready, start)} <= {
            port["name"] for port in container["ports"]
        }
        assert ready["httpGet"]["path"] == "/health/ready"
        assert live["httpGet"]["path"] == start["httpGet"]["path"] == "/health/live"
        # What has much to do must not be killed for it, and what is not ready gets no work soon.
        silent = (live["failureThreshold"] - 1) * live["periodSeconds"] + live["timeoutSeconds"]
        assert silent >= 20
        assert ready["failureThreshold"] * ready["periodSeconds"] <= 5
        if container["name"] == "gateway":
            assert live["httpGet"]["port"] == "admin"
            assert silent > load_settings({}).heartbeat_timeout
        else:
            scheme = "HTTPS" if is_encrypted(manifests) else "HTTP"
            assert {each["httpGet"]["scheme"] for each in (live, ready, start)} == {scheme}


def test_an_image_is_that_of_compose(manifests: list[Manifest]) -> None:
    known = {service["image"] for service in SERVICES.values()}

    for _, container in every(manifests):
        assert container["image"].rpartition("/")[2] in known


def test_stopping_gives_work_in_flight_the_time_it_is_promised(manifests: list[Manifest]) -> None:
    for workload, container in own(manifests):
        if container in pod_spec(workload).get("initContainers", []):
            continue
        values = told(container, manifests)
        name = container["name"]
        before = container.get("lifecycle", {}).get("preStop", {"sleep": {"seconds": 0}})
        if name == "backend":
            of_backend = read_settings(values)
            stopping = of_backend.shutdown_delay + of_backend.drain + 5
        else:
            settings = load_settings(values)
            groups = 3 if name == "gateway" else 1
            delay = settings.shutdown_delay if name == "gateway" else 0
            stopping = delay + groups * (settings.drain + 5)
        grace = pod_spec(workload)["terminationGracePeriodSeconds"]
        assert grace > before["sleep"]["seconds"] + stopping


def test_a_pod_with_an_event_log_ships_it_and_keeps_it(manifests: list[Manifest]) -> None:
    for name in {"gateway", "batches"} & set(workloads(manifests)):
        workload = workloads(manifests)[name]
        (template,) = workload["spec"]["volumeClaimTemplates"]
        mounts = {
            (mount["name"], mount["mountPath"])
            for container in containers(workload)
            for mount in container["volumeMounts"]
            if mount["mountPath"] == "/var/lib/sluicegate"
        }
        assert mounts == {(template["metadata"]["name"], "/var/lib/sluicegate")}
        names = {container["name"] for container in containers(workload)}
        assert names in ({"gateway"}, {"batches", "shipper"})


def test_the_names_of_the_certificates_are_those_that_are_checked(
    manifests: list[Manifest],
) -> None:
    text = of_kind(manifests, "ConfigMap")["gateway-config"]["data"]["regions.yaml"]
    monitors = of_kind(manifests, "PodMonitor").values()
    configured = [each["spec"]["podMetricsEndpoints"][0].get("tlsConfig") for each in monitors]

    names = {"backends"} if is_encrypted(manifests) else set()
    assert set(re.findall(r"server_name: (\S+)", text)) == names
    assert {each["serverName"] for each in configured if each} <= {"backends"}
