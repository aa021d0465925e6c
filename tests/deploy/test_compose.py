"""compose.yaml and its overrides agree with what they mount and with the code they run."""

import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from sluicegate.backends.settings import PREFIX as BACKEND_PREFIX, read_settings
from sluicegate.gateway.cli.root import main
from sluicegate.gateway.config.load import load_folder, load_sources
from sluicegate.gateway.config.sources import read_source
from sluicegate.gateway.settings import PREFIX, load_settings
from testing.compose_files import OBSERVED, ROOT, merged
from tests.deploy.compose_file import (
    BACKENDS,
    COMPOSE,
    EVERYTHING,
    GATEWAYS,
    OURS,
    PATHS,
    SENTINELS,
    SERVICES,
    STATE,
    environment,
    environment_of,
    mounts,
)

LAYOUTS = [(), ("ha",), ("gpu",), ("observability",), OBSERVED, ("ha", "gpu", "ha-gpu"), EVERYTHING]
SECRETS = ("KEY", "SECRET", "TOKEN", "PASSWORD", "AUTH", "_URL")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_watched_or_says_why_not(name: str) -> None:
    service = SERVICES[name]

    assert ("healthcheck" in service) != ("x-no-healthcheck" in service)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_cannot_write_to_its_image_nor_gain_rights(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_pinned_to_a_version(name: str) -> None:
    # And to a digest, once `make pin-images` has asked the registries.
    version = r":v?\d+\.\d+(\.\d+)?(-[a-z]+)?(@sha256:[0-9a-f]{64})?$"
    assert re.search(version, SERVICES[name]["image"])


@pytest.mark.parametrize("name", OURS)
def test_an_image_of_ours_has_the_version_of_the_project(name: str) -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert version is not None
    assert SERVICES[name]["image"].endswith(f":{version.group(1)}")


@pytest.mark.parametrize("name", OURS)
def test_a_build_names_a_file_and_a_stage_that_exist(name: str) -> None:
    build = SERVICES[name]["build"]

    text = (ROOT / build["dockerfile"]).read_text()

    assert "target" not in build or f" AS {build['target']}\n" in text


@pytest.mark.parametrize("name", SERVICES)
def test_everything_a_service_refers_to_exists(name: str) -> None:
    service = SERVICES[name]

    assert set(service["networks"]) <= set(COMPOSE["networks"])
    assert set(service.get("depends_on", {})) <= set(SERVICES)
    for source, *_ in mounts(name):
        assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", [name for name in OURS if name not in BACKENDS])
def test_a_gateway_process_understands_every_variable(name: str) -> None:
    told = {key: value for key, value in environment(name).items() if key.startswith(PREFIX)}

    settings = load_settings(told)

    known = {PREFIX + field.upper() for field in settings.__struct_fields__}
    assert set(told) <= known


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_understands_every_variable(name: str) -> None:
    told = {key: value for key, value in environment(name).items() if key.startswith(PREFIX)}

    settings = read_settings(told)

    known = {BACKEND_PREFIX + field.upper() for field in settings.__struct_fields__}
    assert set(told) <= known


@pytest.mark.parametrize("name", [name for name in OURS if name not in BACKENDS])
def test_a_gateway_container_runs_a_command_that_exists(name: str) -> None:
    arguments = SERVICES[name]["command"]

    group = arguments[:1]
    result = CliRunner().invoke(main, [*group, "--help"])

    assert result.exit_code == 0
    for word in arguments[1:]:
        assert word.isdigit() or word in result.output


def test_no_secret_has_a_value_in_the_file() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if key.endswith(SECRETS):
                assert re.search(r"\$\{\w+(:\?|:-\})", value), f"{name}: {key}"


def test_the_example_environment_asks_for_what_the_files_need() -> None:
    needed = {name for path in PATHS for name in re.findall(r"\$\{(\w+):\?", path.read_text())}

    example = (ROOT / "deploy/env.example").read_text()

    assert set(re.findall(r"^(\w+)=$", example, re.MULTILINE)) == needed


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_from_here_is_a_folder(name: str) -> None:
    # An editor writes a new file; behind a mount of the old one nobody sees it.
    sources = [ROOT / source for source, *_ in mounts(name) if source.startswith(".")]

    assert all(source.is_dir() for source in sources)


def test_a_service_finds_its_file_in_the_folder_that_is_mounted() -> None:
    read = {
        "load-balancer": "/usr/local/etc/haproxy/haproxy.cfg",  # where the image looks
        "otel-collector": SERVICES["otel-collector"]["command"][1],
        "jaeger": SERVICES["jaeger"]["command"][1],
        "prometheus": re.search(r"--config.file=(\S+)", str(SERVICES["prometheus"])).group(1),  # type: ignore[union-attr]
        "grafana": SERVICES["grafana"]["environment"]["GF_PATHS_PROVISIONING"]
        + "/datasources/sluicegate.yaml",
        **{name: SERVICES[name]["command"][1] for name in (*STATE, *SENTINELS)},
    }

    for name, path in read.items():
        ((source, target),) = [(m[0], m[1]) for m in mounts(name) if m[0].startswith(".")]
        assert (ROOT / source / Path(path).relative_to(target)).is_file(), name


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_prints_is_bounded(name: str) -> None:
    logging = SERVICES[name]["logging"]

    assert logging["driver"] == "json-file"
    assert {"max-size", "max-file"} <= set(logging["options"])


@pytest.mark.parametrize("files", LAYOUTS, ids="+".join)
def test_the_document_of_each_layout_names_the_backends_that_run(files: tuple[str, ...]) -> None:
    services = merged(files)["services"]
    for gateway in (name for name in services if name.startswith("gateway-")):
        told = services[gateway]["environment"]
        (folder,) = [v.split(":")[0] for v in services[gateway]["volumes"] if ":/etc/slu" in v]
        placement = told.get("SLUICEGATE_PLACEMENT", "").removeprefix("/etc/sluicegate/")

        document = load_folder(
            ROOT / folder, placement=ROOT / folder / placement if placement else None
        )

        configured = {
            backend.id: (region.name, backend.url)
            for region in document.regions
            for pool in region.pools
            for backend in pool.backends
        }
        running = {}
        for name, service in services.items():
            if name.startswith("backend-"):
                settings = read_settings(environment_of(service))
                url = f"http://{name}:{settings.port}"
                running[settings.backend_id] = (settings.region, url)
        assert configured == running


def test_the_base_is_one_of_each_and_has_no_gpu() -> None:
    services = merged()["services"]

    # The one-shot containers of a first start end before the others begin.
    stay = [
        name
        for name, service in services.items()
        if service.get("restart") not in {"no", "on-failure"}
    ]
    assert stay == ["gateway-1", "billing", "backend-eu", "redis-cache", "redis-state", "database"]
    assert not any("profiles" in service or "deploy" in service for service in services.values())


@pytest.mark.parametrize("files", [*LAYOUTS, ("tls",), ("ha", "ha-tls")], ids="+".join)
def test_a_layout_is_whole_and_publishes_each_port_once(files: tuple[str, ...]) -> None:
    found = merged(files)
    services = found["services"]

    ports = [port.rpartition(":")[0] for s in services.values() for port in s.get("ports", [])]
    assert len(ports) == len(set(ports))
    for service in services.values():
        assert service["image"]
        assert set(service["networks"]) <= set(found["networks"])
        assert set(service.get("depends_on", {})) <= set(services)
        named = [v.split(":")[0] for v in service.get("volumes", []) if not v.startswith(".")]
        assert set(named) <= set(found["volumes"])


def test_spans_are_sent_where_a_collector_runs_and_nowhere_else() -> None:
    quiet = [merged(files)["services"] for files in ((), ("ha",), ("ha", "gpu", "ha-gpu"))]

    told = [environment_of(service) for services in quiet for service in services.values()]

    assert not any(each.get("OTEL_EXPORTER_OTLP_ENDPOINT") for each in told)


def test_customers_speak_tls_with_the_gateway_or_with_the_balancer() -> None:
    alone, balanced = (merged(files)["services"] for files in (("tls",), ("ha", "ha-tls")))

    certificate = alone["gateway-1"]["environment"]["SLUICEGATE_TLS_CERTIFICATE"]
    assert balanced["load-balancer"]["environment"]["CUSTOMERS_CERTIFICATE"] == certificate
    assert "https://" in alone["gateway-1"]["healthcheck"]["test"][3]
    assert "SLUICEGATE_TLS_CERTIFICATE" not in balanced["gateway-1"]["environment"]
    assert 'ssl crt "${CUSTOMERS_CERTIFICATE}"' in (ROOT / "deploy/haproxy.cfg").read_text()


def test_the_gateways_keep_their_logs_apart_and_share_one_ledger() -> None:
    own = (*GATEWAYS, "billing")
    of_data = [[v[0] for v in mounts(name) if v[1] == "/var/lib/sluicegate"] for name in own]
    ledgers = {load_settings(environment(name)).ledger for name in (*own, "ledger-init")}

    assert of_data == [["gateway-1"], ["gateway-2"], ["billing"]]
    (ledger,) = map(make_url, ledgers)
    of_database = environment("database")
    assert ledger.drivername == "postgresql+psycopg"
    assert ledger.host in SERVICES
    assert ledger.database == of_database["POSTGRES_DB"]
    assert ledger.username == of_database["POSTGRES_USER"]
    assert ledger.password == of_database["POSTGRES_PASSWORD"]


def test_gateways_believe_the_balancer_and_nobody_else_who_their_callers_are() -> None:
    (address,) = (each["ipv4_address"] for each in SERVICES["load-balancer"]["networks"].values())
    (given,) = COMPOSE["networks"]["edge"]["ipam"]["config"]

    for name in GATEWAYS:
        assert environment(name)["SLUICEGATE_TRUSTED_PROXIES"] == address
    assert ip_address(address) in ip_network(given["subnet"])
    assert ip_address(address) not in ip_network(given["ip_range"])
    assert "option forwardfor\n" in (ROOT / "deploy/haproxy.cfg").read_text()


def test_customers_reach_the_balancer_only_and_operators_come_from_this_machine() -> None:
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}

    assert published.pop("load-balancer") == ["8080:8080", "8001:8001"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_nothing_is_on_a_network_that_it_does_not_need() -> None:
    workers = {
        "ledger-init": {"state", "database"},
        "billing": {"state", "database"},
        "request-log": {"state"},
    }
    needed = {
        "load-balancer": {"edge"},
        **{name: {"edge", "backends", "cache", "state", "database"} for name in GATEWAYS},
        **{name: {"backends"} for name in BACKENDS},
        **workers,
        "redis-cache": {"cache"},
        **{name: {"state"} for name in (*STATE, *SENTINELS)},
        "database": {"database"},
        "otel-collector": set[str](),
        "jaeger": {"operators"},
        "prometheus": {"operators"},
        "grafana": {"operators"},
    }

    gateways = {name for name in OURS if name not in BACKENDS} | {"jaeger", "grafana"}
    both = {"otel-collector", "prometheus"}
    telemetry = {
        **{name: {"telemetry"} for name in gateways},
        **{name: {"backends-telemetry"} for name in BACKENDS},
        **{name: {"telemetry", "backends-telemetry"} for name in both},
    }
    for name, service in SERVICES.items():
        assert set(service["networks"]) == needed[name] | telemetry.get(name, set()), name


def test_whoever_uses_the_ledger_waits_until_it_is_created() -> None:
    users = {name for name in OURS if "database" in SERVICES[name]["networks"]} - {"ledger-init"}

    assert users >= {*GATEWAYS, "billing"}
    for name in users:
        condition = SERVICES[name]["depends_on"]["ledger-init"]
        assert condition == {"condition": "service_completed_successfully"}
    assert SERVICES["ledger-init"]["command"] == ["ledger", "init"]
    # Where it refuses, whoever brings the deployment up is told so, and waits for nothing.
    assert SERVICES["ledger-init"]["restart"] == "no"


def test_gateways_reach_backends_by_one_network_alone() -> None:
    for gateway in GATEWAYS:
        for backend in BACKENDS:
            shared = set(SERVICES[gateway]["networks"]) & set(SERVICES[backend]["networks"])
            assert shared == {"backends"}


def test_only_what_is_published_is_on_a_network_that_leads_outside() -> None:
    outside = {name for name, each in COMPOSE["networks"].items() if "internal" not in each}

    published = {name for name, service in SERVICES.items() if "ports" in service}
    assert published == {"load-balancer", "gateway-1", "jaeger", "prometheus", "grafana"}
    for name, service in SERVICES.items():
        if outside & set(service["networks"]):
            assert name in published | set(GATEWAYS), name


def test_the_balancer_and_prometheus_know_every_gateway() -> None:
    balancer = (ROOT / "deploy/haproxy.cfg").read_text()

    settings = [load_settings(environment(name)) for name in GATEWAYS]
    script = " ".join(SERVICES["prometheus"]["entrypoint"])
    written = re.search(r"printf '(.+?)' \"\$\$SLUICEGATE_GATEWAYS\" >(\S+)", script)
    assert written is not None
    text = written[1].replace("%s", environment("prometheus")["SLUICEGATE_GATEWAYS"])
    ((scraped,),) = [[each["targets"] for each in msgspec.json.decode(text)]]
    assert f"files: [{written[2]}]" in (ROOT / "deploy/prometheus.yaml").read_text()

    for backend in balancer.split("\nbackend ")[1:]:
        ports = [own.grpc_port if backend.startswith("grpc-") else own.port for own in settings]
        known = [f"{name}:{port}" for name, port in zip(GATEWAYS, ports, strict=True)]
        assert re.findall(r"server gateway-\d (\S+)", backend) == known
    known = [f"{n}:{own.admin_port}" for n, own in zip(GATEWAYS, settings, strict=True)]
    assert scraped == known


def test_the_balancer_leaves_refusing_to_the_gateway() -> None:
    balancer = (ROOT / "deploy/haproxy.cfg").read_text()
    document = load_sources(
        [read_source(path) for path in sorted((ROOT / "config").glob("*.yaml"))]
    )

    patience = re.search(r"timeout server (\d+)s", balancer)

    assert patience is not None
    assert int(patience.group(1)) > document.deadline.maximum
    # HAProxy bounds no body, so that it is the gateway that refuses, with a problem that says why.
    assert "req.body_size" not in balancer


def test_the_balancer_repeats_only_what_was_not_sent_or_changes_nothing() -> None:
    balancer = (ROOT / "deploy/haproxy.cfg").read_text()

    for backend in balancer.split("\nbackend ")[1:]:
        assert "http-request disable-l7-retry if !{ method GET HEAD }" in backend


def test_the_balancer_notices_that_a_gateway_drains_while_it_still_serves() -> None:
    balancer = (ROOT / "deploy/haproxy.cfg").read_text()

    checks = re.findall(r"check inter (\d+)s fastinter (\d+)ms fall (\d+)", balancer)

    assert "uri /health/ready" in balancer
    for interval, fast, fall in checks:
        noticed = int(interval) + int(fast) / 1000 * (int(fall) - 1)
        assert noticed + 1 < min(load_settings(environment(g)).shutdown_delay for g in GATEWAYS)


def test_stopping_gives_work_in_flight_the_time_it_is_promised() -> None:
    for name in (*GATEWAYS, *BACKENDS):
        told = environment(name)
        settings = read_settings(told) if name in BACKENDS else load_settings(told)

        grace = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        # What a supervisor stops one after the other; a backend stops itself.
        groups = 3 if name in GATEWAYS else 1
        assert grace > settings.shutdown_delay + groups * (settings.drain + 5)
        assert msgspec.structs.asdict(settings)["drain"] == 10
