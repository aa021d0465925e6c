"""Writes the placement file, from which gateways read where `sluicegate up` runs backends."""

from collections.abc import Iterable
from pathlib import Path

import yaml

from gateway.supervisor.spec import ProcessSpec

_HEAD = "# Written by `sluicegate up`; takes the place of `regions` in the configuration.\n"


def write_placement(path: Path, backends: Iterable[ProcessSpec]) -> None:
    """Replace the file with the regions of `backends`, in their order."""
    pools: dict[str, list[dict[str, str]]] = {}
    for spec in backends:
        pools.setdefault(spec.region, []).append(
            {"id": f"{spec.region}-{spec.index}", "url": spec.address}
        )
    regions = [{"name": region, "pools": [{"backends": pool}]} for region, pool in pools.items()]
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(_HEAD + yaml.safe_dump({"regions": regions}, sort_keys=False))
    temporary.replace(path)
