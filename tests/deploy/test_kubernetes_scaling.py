"""KEDA's queries give what waits in a pool and how busy it is, and so many replicas."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from testing.manifests import Manifest, of_kind, pod_labels, workloads
from tests.support.replicas import Scaling, Trigger, read_scaling

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/metrics.md").read_text()
_METRICS = ("sluicegate_backend_queued_seconds", "sluicegate_backend_device_busy_share")


def scaling(*, least: int = 2, activation: float = 0.0) -> Scaling:
    triggers = (
        Trigger(name="queued", query="", threshold=0.1, activation=activation),
        Trigger(name="busy", query="", threshold=0.7, activation=activation),
    )
    return Scaling(target="backend", least=least, most=20, triggers=triggers)


@pytest.mark.parametrize(
    ("queued", "busy", "current", "replicas"),
    [
        (0.0, 0.0, 4, 2),
        (0.0, 2.7, 4, 4),
        (0.0, 2.9, 4, 4),
        (0.0, 3.2, 4, 5),
        (0.9, 2.7, 4, 9),
        (60.0, 4.0, 4, 20),
    ],
)
def test_the_larger_answer_counts_within_bounds_and_tolerance(
    queued: float, busy: float, current: int, replicas: int
) -> None:
    values = {"queued": queued, "busy": busy}

    assert scaling().replicas(values, current) == replicas


def test_a_pool_that_may_be_empty_is_so_below_both_activations() -> None:
    pool = scaling(least=0, activation=0.05)

    assert pool.replicas({"queued": 0.05, "busy": 0.01}, 3) == 0
    assert pool.replicas({"queued": 0.06, "busy": 0.01}, 0) == 1


def test_a_query_is_about_a_documented_metric_and_the_labels_of_a_pool(
    manifests: list[Manifest],
) -> None:
    labels = [pod_labels(each) for each in workloads(manifests).values()]
    pools = {(each.get("sluicegate/region"), each.get("sluicegate/pool")) for each in labels}
    scaled = of_kind(manifests, "ScaledObject").values()
    copied = [
        name
        for monitor in of_kind(manifests, "PodMonitor").values()
        for name in monitor["spec"].get("podTargetLabels", [])
    ]
    for each in map(read_scaling, scaled):
        asked = [
            re.findall(r'(\w+)\{(\w+)="(.+?)",(\w+)="(.+?)"\}', t.query) for t in each.triggers
        ]
        assert [found[0][0] for found in asked] == list(_METRICS)
        for ((metric, region, its_region, pool, its_pool),) in asked:
            assert f"`{metric}`" in PAGE
            assert (its_region, its_pool) in pools
            assert [pool, region] == [name.replace("/", "_") for name in copied]


@pytest.mark.system
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_computes_the_sum_over_the_pool_of_the_averages_of_a_minute(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    queries = [
        trigger.query
        for each in of_kind(manifests, "ScaledObject").values()
        for trigger in read_scaling(each).triggers
    ]
    selectors = {query: query[query.index("(sluice") : query.index("}")] for query in queries}
    series = []
    for selector in {text.removeprefix("sum(avg_over_time(") for text in selectors.values()}:
        name = selector.lstrip("(")
        # Two backends, one of which becomes busy within the minute, and pools that do not count.
        series += [
            {"series": f'{name},pod="a"}}', "values": "3 3 3 3 3"},
            {"series": f'{name},pod="b"}}', "values": "0 0 0 4 4"},
            {"series": name.replace('="', '="another-') + "}", "values": "9 9 9 9 9"},
        ]
    tests = [
        {
            "interval": "15s",
            "input_series": series,
            "promql_expr_test": [
                {
                    "expr": query,
                    "eval_time": "1m",
                    "exp_samples": [{"labels": "{}", "value": 3.0 + (0 + 0 + 0 + 4 + 4) / 5}],
                }
                for query in queries
            ],
        }
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"tests": tests if queries else []}))

    done = subprocess.run(
        ["promtool", "test", "rules", file],  # noqa: S607 - wherever it is installed
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
