"""Reads the settings that `models tune` found best for a model on this kind of machine."""

import logging
from pathlib import Path
from typing import Annotated

import msgspec

from backends.cores import usable_cores
from backends.qualification.records import (
    machine_key,
    read_machine,
    read_record,
    write_record,
)

_log = logging.getLogger(__name__)
RECORD = ".tuning.json"
Count = Annotated[int, msgspec.Meta(ge=1)]


class TunedBatching(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the `rows` of a batch and the `threads` that run the most rows a second."""

    rows: Count
    threads: Count


def read_tuned(folder: Path, *, digest: str, provider: str) -> TunedBatching | None:
    """Return what was found for this model on this kind of machine; what others found is logged."""
    found = read_record(folder / RECORD, _key(digest, provider), TunedBatching)
    if found is None and (elsewhere := read_machine(folder / RECORD)) is not None:
        _log.info(
            "a tuning of another device, runtime or revision is not used; tune the model here",
            extra={"folder": str(folder), **msgspec.to_builtins(elsewhere)},
        )
    return found


def write_tuned(folder: Path, tuned: TunedBatching, *, digest: str, provider: str) -> bool:
    """Keep what was found; `False` where the folder cannot be written."""
    return write_record(folder / RECORD, _key(digest, provider), tuned)


def _key(digest: str, provider: str) -> str:
    # What is best for sixteen cores is not for two of the same kind.
    return machine_key(digest, provider, str(usable_cores()))
