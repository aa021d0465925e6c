"""Reads the settings that `models tune` found best for a model on this kind of machine."""

from pathlib import Path
from typing import Annotated

import msgspec

from backends.qualification.records import machine_key, read_record, write_record

RECORD = ".tuning.json"
Count = Annotated[int, msgspec.Meta(ge=1)]


class TunedBatching(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the `rows` of a batch and the `threads` that run the most rows a second."""

    rows: Count
    threads: Count


def read_tuned(folder: Path, *, digest: str, provider: str) -> TunedBatching | None:
    """Return what was found for this model on this kind of machine."""
    return read_record(folder / RECORD, machine_key(digest, provider), TunedBatching)


def write_tuned(folder: Path, tuned: TunedBatching, *, digest: str, provider: str) -> bool:
    """Keep what was found; `False` where the folder cannot be written."""
    return write_record(folder / RECORD, machine_key(digest, provider), tuned)
