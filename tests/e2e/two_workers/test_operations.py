"""Tests operators' actions: reload, restart, a second start on a busy port."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from testing.loopback import get
from testing.ports import free_port
from testing.system import System, pretty
from testing.waiting import wait_until
from tools.reference.metrics_page import BACKEND, GATEWAY, declared_metrics

pytestmark = pytest.mark.e2e
_CONFIG = Path(__file__).parents[3] / "config"
# Seconds between two requests of a load: the processor is for what changes meanwhile.
_PAUSE = 0.01


@pytest.fixture
def config(system: System, folder: Path) -> Iterator[Path]:
    """The document, to be changed."""
    yield folder / "config"
    shutil.copytree(_CONFIG, folder / "config", dirs_exist_ok=True)
    with system.admin() as admin:
        restored = admin.post("/admin/config/reload")
    assert restored.status_code == 200, pretty(restored)


def edit(config: Path, old: str, new: str) -> int:
    """Replace `old` in the document; return its line."""
    path = config / "gateway.yaml"
    before, found, after = path.read_text().partition(old)
    assert found
    path.write_text(before + new + after)
    return before.count("\n") + 1


async def _statuses_during(system: System, change: asyncio.Event) -> list[int]:
    """Ask again and again until `change` is set, and a little longer."""
    statuses: list[int] = []
    async with system.async_client() as client:
        while not change.is_set() or len(statuses) < 50:
            response = await client.post(
                "/v1/classify", json={"model": "sentiment", "input": f"text {len(statuses)}"}
            )
            statuses.append(response.status_code)
            await asyncio.sleep(_PAUSE)
    return statuses


@pytest.mark.anyio
async def test_a_changed_document_is_live_after_reload_and_no_request_fails(
    system: System, config: Path
) -> None:
    edit(config, "max_items: 2048", "max_items: 3")
    changed = asyncio.Event()
    asking = asyncio.create_task(_statuses_during(system, changed))

    with system.admin() as admin:
        reloaded = await asyncio.to_thread(admin.post, "/admin/config/reload")
    changed.set()

    assert reloaded.status_code == 200, pretty(reloaded)
    assert set(await asking) == {200}
    for _ in range(8):  # both workers have it
        with system.client() as client:
            body = {"model": "sentiment", "input": ["a", "b", "c", "d"]}
            assert client.post("/v1/classify", json=body).status_code == 413


def test_a_broken_document_is_refused_with_its_line_and_changes_nothing(
    system: System, config: Path
) -> None:
    line = edit(config, "max_items: 2048", "max_items: 3\n  max_itemz: 4") + 1

    with system.admin() as admin:
        before = admin.get("/admin/config").json()["generation"]
        refused = admin.post("/admin/config/reload")
        after = admin.get("/admin/config").json()["generation"]

    problem = refused.json()
    assert refused.status_code == 422
    assert problem["file"].endswith("gateway.yaml")
    assert problem["line"] == line
    assert "max_itemz" in problem["field"] + problem["detail"]
    assert after == before
    with system.client() as client:
        body = {"model": "sentiment", "input": ["a", "b", "c", "d"]}
        assert client.post("/v1/classify", json=body).status_code == 200


def test_usage_survives_a_restart(system: System) -> None:
    before = _requests(system)
    with system.client() as client:
        assert client.post("/v1/embed", json={"model": "minilm", "input": "kept"}).is_success
    assert system.stop() == 0

    system.start()

    wait_until(
        lambda: _requests(system) == before + 1, within=60, what="the request is in the usage"
    )


def _requests(system: System) -> int:
    with system.client() as client:
        lines = client.get("/v1/usage").json()["data"]
        return sum(line["requests"] for line in lines if line["group"]["model"] == "minilm")


def test_a_revoked_key_is_refused_at_once(system: System) -> None:
    with system.admin() as admin:
        made = admin.post("/admin/keys", json={"tenant": "demo", "name": "short-lived"})
        assert made.is_success, pretty(made)
        key = made.json()["key"]
        headers = {"authorization": f"Bearer {key}"}
        allowed = get(f"{system.url}/v1/models", headers=headers)
        admin.delete(f"/admin/keys/{made.json()['id']}")

    refused = get(f"{system.url}/v1/models", headers=headers)

    assert allowed.status_code == 200
    assert refused.status_code == 401


def _shown(page: str, *, of: str) -> dict[str, set[str]]:
    """Return the metrics of a page, each with its labels, by the names of its declaration."""
    found: dict[str, set[str]] = {}
    for metric in text_string_to_metric_families(page):
        if metric.name.startswith(of) and metric.samples:
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
            found[name] = labels
    return found


def test_the_metrics_of_a_run_are_declared_ones(system: System) -> None:
    with system.client() as client, system.admin() as admin:
        for text in ("good", "good", "bad"):
            client.post("/v1/classify", json={"model": "sentiment", "input": text})
        wait_until(
            lambda: "sluicegate_shipped_events_total" in admin.get("/metrics").text,
            what="every process publishes",
        )
        page, accept = admin.get("/metrics").text, {"accept": "application/openmetrics-text"}
        open_metrics = admin.get("/metrics", headers=accept)
    (backend, *_) = system.processes("backend")
    declared = {name: set(metric.labels) for name, metric in declared_metrics(GATEWAY).items()}
    own = {name: set(metric.labels) for name, metric in declared_metrics(BACKEND).items()}

    gateway = _shown(page, of="sluicegate_")
    # Those of what did not happen here: refusals, faults, several regions' limits, certificates.
    assert len(gateway) > 0.6 * len(declared)
    assert {name: declared.get(name) for name in gateway} == gateway
    of_backend = _shown(get(f"{backend.address}/metrics").text, of="sluicegate_backend_")
    assert len(of_backend) > 0.6 * len(own)
    assert {name: own.get(name) for name in of_backend} == of_backend
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")


def test_a_second_up_on_a_busy_port_is_refused_in_one_line(
    system: System, light_models: Path, tmp_path: Path
) -> None:
    finished = _up(
        *("--port", str(system.port), "--admin-port", str(free_port())),
        *("--data-dir", str(tmp_path / "other"), "--models", str(light_models)),
    )

    assert finished.returncode == 2
    assert str(system.port) in finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1


def _up(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sluicegate.gateway", "up", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
