"""Records what the first load of a model finds out, so that later loads need not repeat it.

A model with a valid record has been qualified on this machine, and can be declared without a load.
"""

import contextlib
from pathlib import Path

import msgspec

from sluicegate.backends.executors.cost import MeasuredCosts
from sluicegate.backends.qualification.records import machine_key, read_record, write_record
from sluicegate.backends.repository.model import Model
from sluicegate.backends.settings import BackendSettings

# Machines of another kind, and backends with other settings, have files of their own.
_RECORD = ".loaded-{}.json"
_DIGITS = 12
# Part of the record's key. Increase it when loads measure in another way.
_METHOD = "1"


class LoadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the results of a load: the precision, the graph's file, and the costs."""

    precision: str
    file: str
    costs: MeasuredCosts


class LoadRecords:
    """Reads and writes the records of models.

    A record that was forgotten is not read again before it was written anew, even if its file could
    not be removed.
    """

    def __init__(self, settings: BackendSettings) -> None:
        threads, wide = settings.worker_threads, settings.wide
        allowed = (threads, wide, settings.gpu_fp16, settings.gpu_tf32)
        self._machine = machine_key(_METHOD, settings.provider, repr(allowed))
        self._forgotten: set[tuple[Path, str]] = set()

    def read(self, model: Model) -> LoadRecord | None:
        """Return the record of a model; `None` if it must be qualified by a load."""
        if (model.folder, model.digest) in self._forgotten:
            return None
        return read_record(self._path(model), self._key(model), LoadRecord)

    def write(self, model: Model, record: LoadRecord) -> None:
        """Record a load, if the model's folder can be written."""
        if write_record(self._path(model), self._key(model), record):
            self._forgotten.discard((model.folder, model.digest))

    def forget(self, model: Model) -> None:
        """Remove a model's record, because a load has failed."""
        self._forgotten.add((model.folder, model.digest))
        with contextlib.suppress(OSError):
            self._path(model).unlink(missing_ok=True)

    def _key(self, model: Model) -> str:
        return f"{self._machine} {model.digest}"

    def _path(self, model: Model) -> Path:
        return model.folder / _RECORD.format(self._machine[:_DIGITS])
