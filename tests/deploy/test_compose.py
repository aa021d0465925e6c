"""compose.yaml agrees with itself, with the files it mounts and with the code it runs."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from sqlalchemy import make_url

from backends.settings import PREFIX as BACKEND_PREFIX, read_settings
from gateway.cli.root import main
from gateway.config.load import load_sources
from gateway.config.sources import read_source
from gateway.settings import PREFIX, load_settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
GATEWAYS = ["gateway-1", "gateway-2"]
BACKENDS = [name for name in OURS if name.startswith("backend-")]
SECRETS = ("KEY", "SECRET", "TOKEN", "PASSWORD", "AUTH", "_URL")


def environment(name: str) -> dict[str, str]:
    """Return what a service is told, with a value in the place of each secret."""
    told = SERVICES[name].get("environment", {})
    return {key: re.sub(r"\$\{[^}]*\}", "x" * 16, str(value)) for key, value in told.items()}


def mounts(name: str) -> list[list[str]]:
    return [volume.split(":") for volume in SERVICES[name].get("volumes", [])]


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
    assert re.search(r":v?\d+\.\d+(\.\d+)?(-[a-z]+)?$", SERVICES[name]["image"])


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
                assert re.search(r"\$\{\w+:\?", value), f"{name}: {key}"


def test_the_example_environment_asks_for_what_the_file_needs() -> None:
    needed = set(re.findall(r"\$\{(\w+):\?", (ROOT / "compose.yaml").read_text()))

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
    }

    for name, path in read.items():
        ((source, target),) = [(m[0], m[1]) for m in mounts(name) if m[0].startswith(".")]
        assert (ROOT / source / Path(path).relative_to(target)).is_file(), name


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_prints_is_bounded(name: str) -> None:
    logging = SERVICES[name]["logging"]

    assert logging["driver"] == "json-file"
    assert {"max-size", "max-file"} <= set(logging["options"])


def test_the_mounted_documents_are_one_valid_document_of_the_backends_that_run() -> None:
    for gateway in GATEWAYS:
        (folder,) = [source for source, target, *_ in mounts(gateway) if "/etc/" in target]
        files = (ROOT / folder).glob("*.yaml")

        document = load_sources([read_source(path) for path in sorted(files)])

        configured = {
            backend.id: (region.name, backend.url)
            for region in document.regions
            for pool in region.pools
            for backend in pool.backends
        }
        running = {}
        for name in BACKENDS:
            settings = read_settings(environment(name))
            running[settings.backend_id] = (settings.region, f"http://{name}:{settings.port}")
        assert configured == running


def test_the_gateways_keep_their_logs_apart_and_share_one_ledger() -> None:
    of_data = [[v[0] for v in mounts(name) if v[1] == "/var/lib/sluicegate"] for name in OURS[:3]]
    ledgers = {load_settings(environment(name)).ledger for name in (*GATEWAYS, "billing")}

    assert of_data == [["gateway-1"], ["gateway-2"], ["billing"]]
    (ledger,) = map(make_url, ledgers)
    of_database = environment("database")
    assert ledger.drivername == "postgresql+psycopg"
    assert ledger.host in SERVICES
    assert ledger.database == of_database["POSTGRES_DB"]
    assert ledger.username == of_database["POSTGRES_USER"]
    assert ledger.password == of_database["POSTGRES_PASSWORD"]


def test_customers_reach_the_balancer_only_and_operators_come_from_this_machine() -> None:
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}

    assert published.pop("load-balancer") == ["8080:8080"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_nothing_is_on_a_network_that_it_does_not_need() -> None:
    workers = {"billing": {"state", "database"}, "request-log": {"state"}}
    needed = {
        "load-balancer": {"edge"},
        **{name: {"edge", "backends", "cache", "state", "database"} for name in GATEWAYS},
        **{name: {"backends"} for name in BACKENDS},
        **workers,
        "redis-cache": {"cache"},
        "redis-state": {"state"},
        "database": {"database"},
        "otel-collector": set[str](),
        "jaeger": {"operators"},
        "prometheus": {"operators"},
    }

    for name, service in SERVICES.items():
        assert set(service["networks"]) - {"telemetry"} == needed[name], name
        assert ("telemetry" in service["networks"]) == (
            name in OURS or name in ("otel-collector", "jaeger", "prometheus")
        )


def test_only_what_is_published_is_on_a_network_that_leads_outside() -> None:
    outside = {name for name, each in COMPOSE["networks"].items() if each != {"internal": True}}

    published = {name for name, service in SERVICES.items() if "ports" in service}
    assert published == {"load-balancer", "gateway-1", "jaeger", "prometheus"}
    for name, service in SERVICES.items():
        if outside & set(service["networks"]):
            assert name in published | set(GATEWAYS), name


def test_the_cache_forgets_and_the_state_does_not() -> None:
    cache, state = (" ".join(SERVICES[f"redis-{kind}"]["command"]) for kind in ("cache", "state"))

    assert "allkeys-lfu" in cache
    assert "--appendonly no" in cache
    assert "noeviction" in state
    assert "--appendonly yes" in state
    assert mounts("redis-state") == [["redis-state", "/data"]]


def test_the_gpu_profile_holds_the_gpu_backends_and_nothing_else() -> None:
    profiled = {name for name, service in SERVICES.items() if service.get("profiles") == ["gpu"]}

    assert profiled == {name for name in BACKENDS if name.endswith("-gpu")}
    for name in profiled:
        devices = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert devices[0]["capabilities"] == ["gpu"]


def test_the_balancer_and_prometheus_know_every_gateway() -> None:
    balancer = (ROOT / "deploy/haproxy.cfg").read_text()
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus.yaml").read_text())

    settings = [load_settings(environment(name)) for name in GATEWAYS]
    scraped = [
        t
        for job in prometheus["scrape_configs"]
        for s in job["static_configs"]
        for t in s["targets"]
    ]

    known = [f"{name}:{own.port}" for name, own in zip(GATEWAYS, settings, strict=True)]
    for backend in balancer.split("\nbackend ")[1:]:
        assert re.findall(r"server gateway-\d (.+)", backend) == known
    assert {f"{n}:{own.admin_port}" for n, own in zip(GATEWAYS, settings, strict=True)} <= set(
        scraped
    )


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


def test_prometheus_has_the_key_that_the_metrics_page_wants() -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus.yaml").read_text())["scrape_configs"]
    credentials = {job["job_name"]: job.get("authorization") for job in jobs}

    command = " ".join(SERVICES["prometheus"]["entrypoint"])

    assert credentials["gateway"] == {"credentials_file": "/tmp/admin-key"}
    assert ">/tmp/admin-key" in command
    assert set(BACKENDS) == {
        target.partition(":")[0]
        for job in jobs
        if job["job_name"] == "backend"
        for static in job["static_configs"]
        for target in static["targets"]
    }


def test_spans_go_where_the_collector_listens() -> None:
    collector = yaml.safe_load((ROOT / "deploy/otel-collector.yaml").read_text())

    port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]

    for name in OURS:
        told = environment(name)["OTEL_EXPORTER_OTLP_ENDPOINT"]
        assert told == f"http://otel-collector:{port}"
        assert "telemetry" in SERVICES[name]["networks"]


def test_spans_are_kept_in_a_volume() -> None:
    collector = yaml.safe_load((ROOT / "deploy/otel-collector.yaml").read_text())
    jaeger = yaml.safe_load((ROOT / "deploy/jaeger.yaml").read_text())

    port = jaeger["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].rpartition(":")[2]
    store = jaeger["extensions"]["jaeger_storage"]["backends"]["traces"]["badger"]

    assert collector["exporters"]["otlp"]["endpoint"] == f"jaeger:{port}"
    assert collector["service"]["pipelines"]["traces"]["exporters"] == ["otlp"]
    assert ["jaeger", "/badger"] in mounts("jaeger")
    assert all(path.startswith("/badger/") for path in store["directories"].values())
    assert store["ephemeral"] is False


@pytest.mark.parametrize("name", [*GATEWAYS, *BACKENDS])
def test_a_hundredth_of_the_traces_is_sampled(name: str) -> None:
    told = environment(name)

    assert told["OTEL_TRACES_SAMPLER"] == "parentbased_traceidratio"
    assert float(told["OTEL_TRACES_SAMPLER_ARG"]) == 0.01


def test_stopping_gives_work_in_flight_the_time_it_is_promised() -> None:
    for name in (*GATEWAYS, *BACKENDS):
        told = environment(name)
        settings = read_settings(told) if name in BACKENDS else load_settings(told)

        grace = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        # What a supervisor stops one after the other; a backend stops itself.
        groups = 3 if name in GATEWAYS else 1
        assert grace > settings.shutdown_delay + groups * (settings.drain + 5)
        assert msgspec.structs.asdict(settings)["drain"] == 10
