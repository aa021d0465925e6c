"""Describes models in the words of the Open Inference Protocol v2, as plain data.

HTTP sends these structs as JSON, which is Triton's; gRPC copies their fields to its messages, which
have the same names. A version is the number of a revision; `name@number` is a version of `name`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from backends.protocol import ModelInfo
from gateway.dialects.oip.task_tensors import ANY, TASK_TENSORS, TensorSpec, tasks_of
from gateway.inference.visibility import model_not_found
from gateway.types import ServedModel

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
"""The extensions of the protocol that are answered; models cannot be loaded or unloaded."""
_PLATFORM = "sluicegate"
_FIRST = "1"
_TYPES: dict[str, str] = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT64": "TYPE_INT64"}
_Served = Callable[[str], ServedModel | None]


class OipServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway, as a server of the protocol."""

    name: str = "sluicegate"
    """Is always the same."""
    version: str
    """The version of the gateway."""
    extensions: tuple[str, ...] = EXTENSIONS
    """What is answered beside the protocol itself."""


class OipTensorMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output of a model."""

    name: str
    """What requests name it by."""
    datatype: str
    """The type of its elements."""
    shape: list[int]
    """Rows and the size of one; -1 is any."""


class OipModelMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A model with its tensors, those of all its tasks."""

    name: str
    """What requests name it by."""
    versions: list[str]
    """The numbers of its revisions that are served."""
    platform: str = _PLATFORM
    """Is always the same."""
    inputs: list[OipTensorMetadata]
    """What it takes."""
    outputs: list[OipTensorMetadata]
    """What it answers."""


class OipTensorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output in a model's configuration."""

    name: str
    """What requests name it by."""
    data_type: str
    """The type of its elements."""
    dims: list[int]
    """The size of a row; -1 is any."""
    optional: bool = False
    """Whether requests may lack it."""


class OipParameter(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a parameter of a model."""

    string_value: str
    """The value, as text."""


class OipModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model's configuration, as far as Triton's has the like."""

    name: str
    """What requests name it by."""
    platform: str = _PLATFORM
    """Is always the same."""
    backend: str = _PLATFORM
    """Is always the same."""
    max_batch_size: int
    """Items that a request may have."""
    input: list[OipTensorConfig]
    """What it takes."""
    output: list[OipTensorConfig]
    """What it answers."""
    dynamic_batching: dict[str, int] = {}
    """Rows of all requests are batched."""
    parameters: dict[str, OipParameter]
    """`tasks`, `revision` and `profile`, and where it has them `labels`, as JSON, in the order of
    `SCORES`."""


class OipIndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a model that is served."""

    name: str
    """What requests name it by."""
    version: str
    """The number of the revision."""
    state: Literal["READY"] = "READY"
    """Others are not listed."""
    reason: str = ""
    """Is always empty."""


class OipItemStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Always 0: what others ask of a model is not shown to a key."""

    count: int = 0
    """Always 0."""
    ns: int = 0
    """Always 0."""


_NONE = OipItemStatistics()


class OipInferStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a model, for clients that need them to be there."""

    success: OipItemStatistics = _NONE
    """Always 0."""
    fail: OipItemStatistics = _NONE
    """Always 0."""
    queue: OipItemStatistics = _NONE
    """Always 0."""
    compute_input: OipItemStatistics = _NONE
    """Always 0."""
    compute_infer: OipItemStatistics = _NONE
    """Always 0."""
    compute_output: OipItemStatistics = _NONE
    """Always 0."""
    cache_hit: OipItemStatistics = _NONE
    """Always 0."""
    cache_miss: OipItemStatistics = _NONE
    """Always 0."""


class OipModelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a model, with figures that are 0: `/metrics` has them, for operators."""

    name: str
    """What requests name it by."""
    version: str
    """The number of the revision."""
    last_inference: int = 0
    """Always 0."""
    inference_count: int = 0
    """Always 0."""
    execution_count: int = 0
    """Always 0."""
    inference_stats: OipInferStatistics = OipInferStatistics()
    """Always 0."""
    batch_stats: list[str] = []
    """Always empty."""


class FoundModel(NamedTuple):
    """A model as a request names it, and as the gateway does."""

    served: ServedModel | None
    name: str
    """What the gateway names the version by."""
    version: str
    """The number of the version; empty where several share the items."""
    visible: Sequence[ServedModel] = ()
    """All models that the caller may know of."""

    def known(self) -> ServedModel:
        """Return the model.

        Raises:
            ModelNotFound: it is not served.
        """
        if self.served is None:
            raise model_not_found(self.name, self.visible, listed_by="POST /v2/repository/index")
        return self.served


def find_model(served: _Served, name: str, version: str = "") -> FoundModel:
    """Return the model that `served` (which knows of what a caller may) has for a version of it."""
    found = served(name)
    sharing = _sharing(found.info) if found is not None else []
    if sharing and version in ("", *(sharing if len(sharing) == 1 else ())):
        return FoundModel(found, name, sharing[0] if len(sharing) == 1 else "")
    named = f"{name}@{version}" if version else name
    return FoundModel(served(named), named, version)


def versions(info: ModelInfo) -> list[str]:
    """Return the numbers of all revisions of a model that requests can name."""
    serving = info.serving
    apart = [] if serving is None else list(serving.preload)
    if serving is not None and serving.shadow is not None:
        apart.append(serving.shadow.revision)
    return sorted({*_sharing(info), *apart}, key=lambda number: (len(number), number))


def model_metadata(found: FoundModel, name: str, version: str = "") -> OipModelMetadata:
    """Return the metadata of a model, or of one `version` of it.

    Raises:
        ModelNotFound: it is not served.
    """
    info = found.known().info
    inputs, outputs = _tensors(info)
    return OipModelMetadata(
        name=name,
        versions=[version] if version else versions(info),
        inputs=[_described(spec) for spec in inputs],
        outputs=[_described(spec) for spec in outputs],
    )


def model_config(found: FoundModel, name: str, *, max_items: int) -> OipModelConfig:
    """Return the configuration of a model; `max_items` are those that a request may have.

    Raises:
        ModelNotFound: it is not served.
    """
    info = found.known().info
    inputs, outputs = _tensors(info)
    parameters = {
        "tasks": ",".join(tasks_of(info)),
        "revision": info.revision,
        "profile": info.profile,
    }
    if info.labels is not None:
        parameters["labels"] = msgspec.json.encode(info.labels).decode()
    return OipModelConfig(
        name=name,
        max_batch_size=max_items,
        input=[_configured(spec) for spec in inputs],
        output=[_configured(spec) for spec in outputs],
        parameters={name: OipParameter(string_value=text) for name, text in parameters.items()},
    )


def repository_index(models: Iterable[ServedModel]) -> list[OipIndexEntry]:
    """Return the versions of `models`, those that a caller may know of."""
    return [OipIndexEntry(name=name, version=number) for name, number in _each_version(models)]


def model_statistics(models: Iterable[ServedModel]) -> list[OipModelStatistics]:
    """Return each version of `models`; nothing of what was counted is a caller's business."""
    return [OipModelStatistics(name=name, version=number) for name, number in _each_version(models)]


def _each_version(models: Iterable[ServedModel]) -> Iterator[tuple[str, str]]:
    """Yield the name and number of each version."""
    for model in models:
        name = model.info.name
        if "@" not in name:
            for number in versions(model.info):
                yield name, number


def _sharing(info: ModelInfo) -> list[str]:
    """Return the numbers of the revisions that answer requests which name none."""
    if info.serving is None or not info.serving.revisions:
        return [info.name.partition("@")[2] or _FIRST]
    return list(info.serving.revisions)


def _tensors(info: ModelInfo) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the inputs and outputs of all tasks of a model; those of some tasks are optional."""
    tasks = [TASK_TENSORS[task] for task in tasks_of(info)]
    inputs = {spec.name: spec for task in tasks for spec in task.inputs}
    outputs: dict[str, TensorSpec] = {}
    for spec in [spec for task in tasks for spec in task.outputs(info)]:
        is_alike = spec.row == outputs.get(spec.name, spec).row
        outputs[spec.name] = spec if is_alike else msgspec.structs.replace(spec, row=ANY)
    needed = [{spec.name for spec in task.inputs if not spec.is_optional} for task in tasks]
    optional = [
        msgspec.structs.replace(spec, is_optional=not all(name in names for names in needed))
        for name, spec in inputs.items()
    ]
    return optional, list(outputs.values())


def _described(spec: TensorSpec) -> OipTensorMetadata:
    return OipTensorMetadata(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def _configured(spec: TensorSpec) -> OipTensorConfig:
    return OipTensorConfig(
        name=spec.name,
        data_type=_TYPES[spec.datatype],
        dims=spec.shape[1:],
        optional=spec.is_optional,
    )
