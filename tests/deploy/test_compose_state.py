"""The state Redis of compose.yaml keeps its roles, and what observes the layout sees all of it."""

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from sluicegate.backends.settings import read_settings
from sluicegate.gateway.redis.url import read_servers
from sluicegate.gateway.settings import load_settings
from testing.compose_files import ROOT
from tests.deploy.compose_file import (
    BACKENDS,
    GATEWAYS,
    OURS,
    SENTINELS,
    SERVICES,
    STATE,
    environment,
    mounts,
)
from tools.monitoring.files import DASHBOARD_FOLDER, RULES

FOLLOWS = "replicaof redis-state"


def test_the_cache_forgets_and_the_state_does_not() -> None:
    cache = " ".join(SERVICES["redis-cache"]["command"])
    state = (ROOT / "deploy/redis-state.sh").read_text()

    assert "allkeys-lfu" in cache
    assert "--appendonly no" in cache
    assert "noeviction" in state
    assert "appendonly yes" in state
    for name in (*STATE, *SENTINELS):
        assert [name, "/data"] in mounts(name)


def test_the_gateways_find_the_state_redis_by_every_sentinel() -> None:
    sentinel = (ROOT / "deploy/sentinel.sh").read_text()

    for name in (*GATEWAYS, "billing", "request-log"):
        servers = read_servers(str(load_settings(environment(name)).state_url))

        assert servers is not None
        hosts = [urlsplit(url) for url in servers.sentinel_urls]
        assert [(url.hostname, url.port) for url in hosts] == [(s, 26379) for s in SENTINELS]
        assert f"sentinel monitor {servers.primary} {STATE[0]} 6379 2" in sentinel


def test_a_server_of_the_state_is_known_by_its_name() -> None:
    for name in STATE:
        assert SERVICES[name]["hostname"] == name
    assert "replica-announce-ip $HOSTNAME" in (ROOT / "deploy/redis-state.sh").read_text()


def start_of_state(folder: Path, hostname: str, *, sizes: str = "") -> str:
    """Return the configuration with which a server of the state Redis starts.

    The other one answers with each of `sizes` in turn when it is asked for its size.
    """
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (folder / "sizes").write_text(sizes)
    (programs / "redis-server").write_text("#!/bin/sh\n")
    (programs / "sleep").write_text("#!/bin/sh\n")
    (programs / "redis-cli").write_text(
        "#!/bin/sh\n"
        '[ "$*" = "-h redis-state-replica dbsize" ] || exit 1\n'
        f"read -r size <{folder}/sizes || exit 1\n"
        f"sed -i 1d {folder}/sizes\n"
        '[ "$size" != away ] && echo "$size"\n'
    )
    for path in programs.iterdir():
        path.chmod(0o755)
    script = (ROOT / "deploy/redis-state.sh").read_text().replace("/data", str(folder))
    told = {"PATH": f"{programs}:/usr/bin:/bin", "HOSTNAME": hostname, "REDISCLI_AUTH": "p" * 16}
    subprocess.run(["/bin/sh", "-c", script], env=told, check=True, timeout=10)
    return (folder / "redis.conf").read_text()


@pytest.mark.parametrize(
    ("hostname", "former", "sizes", "role"),
    [
        ("redis-state", "", "away\n0\n", ""),
        ("redis-state-replica", "", "", f"{FOLLOWS} 6379"),
        (
            "redis-state",
            "replicaof redis-state-replica 6379",
            "",
            "replicaof redis-state-replica 6379",
        ),
        ("redis-state-replica", "port 6379", "", ""),
        ("redis-state", "", "100\n", f"{FOLLOWS}-replica 6379"),
        ("redis-state", "", "away\nLOADING Redis is loading\n7\n", f"{FOLLOWS}-replica 6379"),
    ],
    ids=["first", "second", "replaced", "promoted", "lost its volume", "the other is loading"],
)
def test_a_server_of_the_state_comes_back_in_the_role_it_had(
    tmp_path: Path, hostname: str, former: str, sizes: str, role: str
) -> None:
    if former:
        (tmp_path / "redis.conf").write_text(former + "\n")

    configuration = start_of_state(tmp_path, hostname, sizes=sizes)

    assert re.findall(r"^replicaof .+$", configuration, re.MULTILINE) == ([role] if role else [])
    assert (tmp_path / "redis.conf").stat().st_mode & 0o777 == 0o600


def test_no_dead_server_of_the_state_keeps_the_rest_from_starting() -> None:
    for name, service in SERVICES.items():
        for need, condition in service.get("depends_on", {}).items():
            if need in (*STATE, *SENTINELS):
                assert condition == {"condition": "service_started"}, name
    # An empty one waits for the other's answer: neither may wait for the other's health.
    assert not any("depends_on" in SERVICES[name] for name in STATE)


def test_backends_on_gpus_have_one() -> None:
    for name in BACKENDS:
        if name.endswith("-gpu"):
            devices = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
            assert devices[0]["capabilities"] == ["gpu"]


def test_grafana_reads_what_runs_beside_it() -> None:
    folder = ROOT / "deploy/grafana"
    sources = yaml.safe_load((folder / "datasources/sluicegate.yaml").read_text())["datasources"]
    provider = yaml.safe_load((folder / "dashboards/sluicegate.yaml").read_text())["providers"][0]

    for source in sources:
        url = urlsplit(source["url"])
        assert url.hostname in SERVICES
        assert any(port.endswith(f":{url.port}") for port in SERVICES[url.hostname]["ports"])
    assert ROOT / Path(provider["options"]["path"]).relative_to("/etc") == folder / "dashboards"
    assert folder / "dashboards" == DASHBOARD_FOLDER


def test_prometheus_reads_the_rules() -> None:
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus.yaml").read_text())

    assert [ROOT / "deploy" / name for name in prometheus["rule_files"]] == [RULES]


def test_prometheus_has_the_key_that_the_metrics_page_wants() -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus.yaml").read_text())["scrape_configs"]
    credentials = {job["job_name"]: job.get("authorization") for job in jobs}

    command = " ".join(SERVICES["prometheus"]["entrypoint"])

    assert credentials["gateway"] == {"credentials_file": "/tmp/metrics-key"}
    assert '"$$SLUICEGATE_METRICS_KEY" >/tmp/metrics-key' in command
    assert "SLUICEGATE_ADMIN_KEY" not in SERVICES["prometheus"]["environment"]
    gateway = SERVICES["gateway-1"]["environment"]["SLUICEGATE_METRICS_KEY"]
    assert gateway == SERVICES["prometheus"]["environment"]["SLUICEGATE_METRICS_KEY"]
    (backends,) = [job for job in jobs if job["job_name"] == "backend"]
    (looked_up,) = backends["dns_sd_configs"]
    assert set(looked_up["names"]) == set(BACKENDS)
    assert {read_settings(environment(name)).port for name in BACKENDS} == {looked_up["port"]}


def test_spans_go_where_the_collector_listens() -> None:
    collector = yaml.safe_load((ROOT / "deploy/otel-collector.yaml").read_text())

    port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]

    for name in OURS:
        told = SERVICES[name]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
        # With GPUs, `.env` says whether a collector runs beside them.
        assert told in (f"http://otel-collector:{port}", "${SLUICEGATE_GPU_SPANS:-}")
        assert set(SERVICES[name]["networks"]) & set(SERVICES["otel-collector"]["networks"])


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
