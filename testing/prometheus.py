"""Runs a Prometheus that scrapes a running system, and queries it."""

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any  # Prometheus's JSON, and its configuration

import yaml

from testing.loopback import get, is_answered
from testing.ports import free_port
from testing.system import ADMIN_KEY, System
from testing.waiting import wait_until

Result = dict[str, Any]
"""A series in an answer: `metric` has its labels, `value` has its value."""


class Prometheus:
    """A client of the Prometheus at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expr: str) -> list[Result]:
        """Return the series of an instant query now.

        Raises:
            ValueError: Prometheus cannot evaluate the query; the message says why.
        """
        given = {"query": expr, "time": str(time.time())}
        answer = get(f"{self.url}/api/v1/query", params=given)
        document = answer.json()
        if document["status"] != "success":
            raise ValueError(document["error"])
        result = document["data"]["result"]
        if document["data"]["resultType"] == "scalar":
            return [{"metric": {}, "value": result}]
        found: list[Result] = result
        return found

    def value(self, expr: str) -> float:
        """Return the only value of a query, or 0 if the query has no result."""
        found = self.query(expr)
        return float(found[0]["value"][1]) if found else 0.0

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        alerts = get(f"{self.url}/api/v1/alerts").json()["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}


@contextmanager
def running_prometheus(
    scrapes: Sequence[Mapping[str, Any]], *, interval: str = "1s", rules: Path | None = None
) -> Iterator[Prometheus]:
    """Run a Prometheus with `scrape_configs` and, if given, a file of rules."""
    document = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "scrape_configs": list(scrapes),
        "rule_files": [str(rules)] if rules else [],
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "prometheus.yaml"
        config.write_text(yaml.safe_dump(document))
        port = free_port()
        command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ]
        url = f"http://127.0.0.1:{port}"
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
            try:
                wait_until(lambda: is_answered(f"{url}/-/ready"), what="Prometheus is ready")
                yield Prometheus(url)
            finally:
                child.terminate()


def scrapes_of(system: System) -> list[Mapping[str, Any]]:
    """Return the `scrape_configs` for a system, with the job names of deploy/prometheus.yaml."""
    backends = [str(each.address).removeprefix("http://") for each in system.processes("backend")]
    gateway = f"127.0.0.1:{system.admin_port}"
    return [
        {
            "job_name": "gateway",
            "authorization": {"credentials": ADMIN_KEY},
            "static_configs": [{"targets": [gateway]}],
        },
        {"job_name": "backend", "static_configs": [{"targets": backends}]},
    ]
