"""Records what the first load of a model finds out, so that later loads need not repeat it.

A model with a valid record has been qualified on this machine, and can be declared without a load.
"""

import contextlib

import msgspec

from sluicegate.backends.executors.cost import MeasuredCosts
from sluicegate.backends.qualification.records import machine_key, read_record, write_record
from sluicegate.backends.repository.model import Model
from sluicegate.backends.settings import BackendSettings

_RECORD = ".loaded.json"
# Part of the record's key. Increase it when loads measure in another way.
_METHOD = "1"


class LoadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the results of a load: the precision, the graph's file, and the costs."""

    precision: str
    file: str
    costs: MeasuredCosts


def read_load_record(model: Model, settings: BackendSettings) -> LoadRecord | None:
    """Return the record of a model; `None` if it must be qualified by a load."""
    return read_record(model.folder / _RECORD, _key(model, settings), LoadRecord)


def write_load_record(model: Model, settings: BackendSettings, record: LoadRecord) -> None:
    """Record a load, if the model's folder can be written."""
    write_record(model.folder / _RECORD, _key(model, settings), record)


def forget_load_record(model: Model) -> None:
    """Remove a model's record, because a load has failed."""
    with contextlib.suppress(OSError):
        (model.folder / _RECORD).unlink(missing_ok=True)


def _key(model: Model, settings: BackendSettings) -> str:
    chosen = (settings.worker_threads, settings.wide, settings.gpu_fp16, settings.gpu_tf32)
    return machine_key(_METHOD, model.digest, settings.provider, repr(chosen))
