"""Reads and writes the settings that `models tune` found best on this kind of machine."""

import logging
from pathlib import Path
from typing import Annotated

import msgspec

from sluicegate.backends.qualification.records import (
    machine_key,
    read_machine,
    read_record,
    write_record,
)
from sluicegate.wire.cores import usable_cores

_log = logging.getLogger(__name__)
RECORD = ".tuning.json"
Count = Annotated[int, msgspec.Meta(ge=1)]


class TunedBatching(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the batch size in `rows` and the number of `threads` with the highest throughput."""

    rows: Count
    threads: Count


def read_tuned(folder: Path, *, digest: str, provider: str) -> TunedBatching | None:
    """Return the settings for this kind of machine.

    If there are only settings for other kinds of machines, log this.
    """
    found = read_record(folder / RECORD, _key(digest, provider), TunedBatching)
    if found is None and (elsewhere := read_machine(folder / RECORD)) is not None:
        _log.info(
            "a tuning result of another device, runtime or revision is ignored; run `models tune`",
            extra={"folder": str(folder), **msgspec.to_builtins(elsewhere)},
        )
    return found


def write_tuned(folder: Path, tuned: TunedBatching, *, digest: str, provider: str) -> bool:
    """Record the settings; return `False` if the folder cannot be written."""
    return write_record(folder / RECORD, _key(digest, provider), tuned)


def _key(digest: str, provider: str) -> str:
    # The best settings depend on the number of cores, not only on the kind of CPU.
    return machine_key(digest, provider, str(usable_cores()))
