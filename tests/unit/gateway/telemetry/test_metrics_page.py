"""The page shows what any process of the machine shows."""

import math
from pathlib import Path

from prometheus_client.mmap_dict import mmap_key

from sluicegate.gateway.telemetry.metric_files import ReservedDict
from sluicegate.gateway.telemetry.metrics_page import read_metrics


def test_what_only_some_processes_show_no_more_is_that_of_the_others(tmp_path: Path) -> None:
    for kind in ("livesum", "livemin", "livemax"):
        for process, value in (("1", math.nan), ("2", 2.0), ("3", math.nan)):
            file = ReservedDict(tmp_path / f"gauge_{kind}_{process}.db")
            file.write_value(mmap_key(kind, kind, ["endpoint"], ["eu-0"], "help"), value)
            file.write_value(mmap_key(kind, kind, ["endpoint"], ["gone"], "help"), math.nan)
            file.close()

    found = read_metrics(tmp_path, data_dir=tmp_path)

    shown = {sample.name: (sample.labels, sample.value) for one in found for sample in one.samples}
    assert shown == {
        kind: ({"endpoint": "eu-0"}, 2.0) for kind in ("livemax", "livemin", "livesum")
    }
