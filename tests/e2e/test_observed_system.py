"""Tests a system with the user's models beside the demo models: what it serves, and what is seen.

Its spans are collected, and a Prometheus scrapes it.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from loadtests.dashboards import check
from testing.system import System
from testing.waiting import wait_until
from tests.support.otlp_sink import HttpSink

pytestmark = pytest.mark.e2e
_STEPS = {
    "POST /v1/classify",
    "admission",
    "cache lookup",
    "coalescing",
    "dispatch",
    "claim",
    "POST /v1/call",
    "tokenization",
    "row",
    "queue",
    "batch",
    "model run",
}


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file but hidden ones, which backends measured and prepared."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {str(path.relative_to(folder)): path for path in files}
    return {name: path.read_bytes() for name, path in names.items() if "/." not in name}


@pytest.fixture(scope="module")
def own(light_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's models: `minilm`, and a `sentiment` with other labels."""
    own = tmp_path_factory.mktemp("own") / "models"
    for name in ("minilm", "sentiment"):
        shutil.copytree(light_models / name / "1", own / name / "1")
    manifest = own / "sentiment" / "1" / "model.yaml"
    manifest.write_text(manifest.read_text().replace("negative", "bad").replace("positive", "fine"))
    return own


@pytest.fixture(scope="module")
def before(own: Path) -> dict[str, bytes]:
    """The user's models before they were served."""
    return contents(own)


@pytest.fixture(scope="module")
def sink() -> Iterator[HttpSink]:
    running = HttpSink()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def system(
    demo_models: Path,
    own: Path,
    before: dict[str, bytes],
    sink: HttpSink,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[System]:
    data = tmp_path_factory.mktemp("system") / "data"
    shutil.copytree(demo_models, data / "models", copy_function=os.link)
    environment = sink.environment | {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    arguments = ("--demo-models",)
    with System(data, models=own, environment=environment, arguments=arguments) as running:
        yield running


def test_one_trace_joins_all_steps_of_a_miss(system: System, sink: HttpSink) -> None:
    """It is the first request: later ones may be admitted without asking Redis."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    text = "a secret that must not be in a trace"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "tracestate": "a=1,b=2"}

    def joined() -> list[Span]:
        return [span for span in sink.spans if span.trace_id.hex() == trace]

    with system.client() as client:
        response = client.post(
            "/v1/classify", json={"model": "sentiment", "input": text}, headers=headers
        )
    with suppress(AssertionError):
        wait_until(lambda: {span.name for span in joined()} >= _STEPS)

    assert response.status_code == 200
    assert {span.name for span in joined()} >= _STEPS
    by_id = {span.span_id: span for span in joined()}
    for span in joined():
        assert span.parent_span_id in by_id or span.parent_span_id.hex() == "00f067aa0ba902b7"
        assert span.trace_state == "a=1,b=2"
    assert text not in str(sink.spans)


def test_a_model_of_the_users_wins_over_the_demo_model_of_its_name(
    system: System, own: Path, before: dict[str, bytes]
) -> None:
    """Its folder is as it was; the demo models lie in the data directory, served beside it."""
    with system.client() as client:
        body = {"model": "sentiment", "input": "a joy to watch"}
        answer = client.post("/v1/classify", json=body).json()
        served = {model["name"] for model in client.get("/v1/models").json()["data"]}

    assert {label["label"] for label in answer["results"][0]["labels"]} == {"bad", "fine"}
    assert "topics" in served
    assert contents(own) == before, sorted(contents(own))
    assert f"`sentiment` is served from {own}" in system.output()


@pytest.mark.system
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_every_query_is_answered_and_those_of_a_sound_system_have_data(system: System) -> None:
    """Every panel and rule is a query."""
    assert check(system, model="sentiment", seconds=4.0) == []
