"""Says what an import read from a checkpoint, and from which field of which file.

`models check` shows the fields of a revision. This module adds what only the checkpoint has: its
family, the precision of its weights, and the modules that became part of the graph.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sluicegate.backends.model_tools.description import Field
from sluicegate.backends.model_tools.importing.gliner import FILE as GLINER
from sluicegate.backends.model_tools.importing.source import WEIGHTS, CheckpointFolder
from sluicegate.backends.repository.sentence_modules import FILE as MODULES
from sluicegate.wire.protocol import Task

_LENGTH_BYTES = 8
_PRECISIONS = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}
_MANIFEST = "model.yaml"
# Fields of a GLiNER model's manifest, by the field of `gliner_config.json` that decides them.
_OF_GLINER = {"max_tokens": f"`max_len` in {GLINER}", "tasks": GLINER}
_OF_STATIC = ("max_tokens", "truncate")
_WINDOWED = (Task.ENTITIES, Task.ANSWER)


def checkpoint_fields(source: CheckpointFolder) -> list[Field]:
    """Return what a checkpoint says about its family and its weights."""
    fields = [Field(name="family", value=_family(source), source=_family_source(source))]
    if (found := _precision(source.folder)) is not None:
        fields.append(found)
    return fields


def with_sources(
    source: CheckpointFolder, fields: list[Field], options: Mapping[str, object]
) -> list[Field]:
    """Return fields of a revision, with the sources of those that the import wrote itself."""
    return [
        msgspec.structs.replace(field, source=_source(source, field.name, options))
        if field.source is None
        else field
        for field in fields
    ]


def module_fields(source: CheckpointFolder, tasks: list[Task], max_tokens: int) -> list[Field]:
    """Return how token vectors become a vector, and what happens to long texts."""
    fields = []
    if Task.EMBED in tasks and source.table is None:
        fields.append(_pooling(source))
    windowed = [task for task in tasks if task in _WINDOWED]
    if windowed:
        value = f"long texts are read in overlapping windows of {max_tokens} tokens"
        fields.append(Field(name="windows", value=value, source=f"the task `{windowed[0]}`"))
    return fields


def weight_types(folder: Path) -> dict[str, str]:
    """Return the number formats of the tensors in a folder's safetensors, by the tensors' names.

    A file that cannot be read has none; reading its weights gives the better error.
    """
    found: dict[str, str] = {}
    for path in _weight_files(folder):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                header = json.loads(file.read(length))
            found |= {n: entry["dtype"] for n, entry in header.items() if n != "__metadata__"}
        except (OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError):
            return {}
    return found


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    return sorted(folder.glob("model-*.safetensors"))


def _precision(folder: Path) -> Field | None:
    counts = Counter(weight_types(folder).values())
    names = [_PRECISIONS[kind] for kind, _ in counts.most_common() if kind in _PRECISIONS]
    if not names:
        return None
    source = f"`dtype` in {_weight_files(folder)[0].name}"
    return Field(name="weights", value=", ".join(names), source=source)


def _family(source: CheckpointFolder) -> str:
    kind = str(source.config.get("model_type", "unknown"))
    if source.gliner is not None:
        return f"gliner with a {kind} encoder"
    if source.table is not None:
        return "static"
    return f"setfit on {kind}" if source.head is not None else kind


def _family_source(source: CheckpointFolder) -> str:
    if source.gliner is not None:
        return f"`encoder_config` in {GLINER}"
    if source.table is not None:
        of_module = (source.folder / MODULES).is_file()
        return MODULES if of_module else f"the tensors in {WEIGHTS}"
    field = "`model_type` in config.json"
    return f"{field}, {source.head.source}" if source.head is not None else field


def _pooling(source: CheckpointFolder) -> Field:
    modules = source.modules
    if modules is None:
        own = source.graph is not None
        value = "of the graph" if own else source.pooling()
        return Field(name="pooling", value=value, source=f"the default, without {MODULES}")
    if modules.late is not None:
        return Field(name="pooling", value="none: a vector for each token", source=MODULES)
    pooling = ("splade",) if modules.splade is not None else modules.pooling
    names = [*pooling, *(_module(each) for each in modules.after)]
    return Field(name="pooling", value=", then ".join(names), source=MODULES)


def _module(module: object) -> str:
    return type(module).__name__.removesuffix("Module").lower()


def _source(source: CheckpointFolder, name: str, options: Mapping[str, object]) -> str | None:
    if name in options:
        return "an option"
    has_manifest = (source.folder / _MANIFEST).is_file()
    return _MANIFEST if has_manifest and name in source.fields else _own_source(source, name)


def _own_source(source: CheckpointFolder, name: str) -> str | None:
    """Return the source of a field that the import writes into a manifest, if it is one."""
    if source.gliner is not None and name in _OF_GLINER:
        return _OF_GLINER[name]
    if source.table is not None and name in _OF_STATIC:
        has_limit = "max_length" in source.config
        return "`max_length` in config.json" if has_limit else "the default of a static model"
    if source.head is not None and name in ("labels", "function", "tasks"):
        return source.head.source
    if source.ranking is not None and name in ("labels", "tasks"):
        return "the words that the model ranks by"
    return None
