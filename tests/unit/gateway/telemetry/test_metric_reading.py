"""Chosen metrics are read from the files of all processes, added up by kind."""

import math
from pathlib import Path

from prometheus_client.mmap_dict import mmap_key

from sluicegate.gateway.telemetry.metric_files import ReservedDict
from sluicegate.gateway.telemetry.metric_reading import MetricReader


def write(path: Path, metric: str, sample: str, value: float) -> None:
    file = ReservedDict(path)
    file.write_value(mmap_key(metric, sample, ["model"], ["m"], "help"), value)
    file.close()


def test_counters_are_added_up_and_gauges_as_their_files_say(tmp_path: Path) -> None:
    for process, value in (("1", 2.0), ("2", 3.0)):
        write(tmp_path / f"counter_{process}.db", "requests", "requests_total", value)
        write(tmp_path / f"gauge_livesum_{process}.db", "in_flight", "in_flight", value)
        write(tmp_path / f"gauge_min_{process}.db", "up", "up", value)
        write(tmp_path / f"gauge_max_{process}.db", "late", "late", value)
    reader = MetricReader(tmp_path, ("requests", "in_flight", "up", "late"))

    found = {name: value for (name, _), value in reader.read().items()}

    assert found == {"requests_total": 5.0, "in_flight": 5.0, "up": 2.0, "late": 3.0}


def test_other_metrics_are_left_out_and_labels_kept(tmp_path: Path) -> None:
    write(tmp_path / "counter_1.db", "requests", "requests_total", 1.0)
    write(tmp_path / "counter_2.db", "others", "others_total", 1.0)

    assert MetricReader(tmp_path, ("requests",)).read() == {
        ("requests_total", (("model", "m"),)): 1.0
    }


def test_a_folder_without_files_has_no_values(tmp_path: Path) -> None:
    assert MetricReader(tmp_path / "none", ("requests",)).read() == {}


def test_what_a_process_shows_no_more_is_not_read(tmp_path: Path) -> None:
    for process, value in (("1", 2.0), ("2", math.nan)):
        write(tmp_path / f"gauge_livesum_{process}.db", "in_flight", "in_flight", value)
    write(tmp_path / "gauge_livemin_1.db", "up", "up", math.nan)

    found = MetricReader(tmp_path, ("in_flight", "up")).read()

    assert found == {("in_flight", (("model", "m"),)): 2.0}
