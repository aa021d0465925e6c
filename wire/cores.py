"""Counts the cores that this process may use, within its affinity and its cgroups' quotas."""

import math
import os
from pathlib import Path

from sluicegate.wire.cgroups import cgroup_folders


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many computing threads this process can keep busy.

    A container's quota (`cpus: 1.5`, `limits.cpu: 1500m`) limits the CPU time of all threads
    together, but not the number of visible cores. The quota is rounded up. `root` is the folder
    that contains `/proc` and `/sys`.
    """
    cores = len(os.sched_getaffinity(0))
    quota = min((_quota(*each) for each in cgroup_folders("cpu", root)), default=math.inf)
    return cores if quota >= cores else max(1, math.ceil(quota))


def _quota(version: int, folder: Path) -> float:
    """Return the quota of a cgroup in cores; infinite if the cgroup has no quota."""
    try:
        if version == 1:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        else:
            quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):  # the root has no file; "max" is no number
        return math.inf
