"""Describes models in the terms of the Open Inference Protocol v2.

HTTP sends these structs as JSON in Triton's format. gRPC copies their fields to messages with the
same field names. A version is the number of a revision. `name@number` identifies a version of the
model `name`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from sluicegate.gateway.dialects.oip.task_tensors import ANY, TASK_TENSORS, TensorSpec, tasks_of
from sluicegate.gateway.inference.visibility import model_not_found
from sluicegate.gateway.types import ServedModel
from sluicegate.wire.protocol import ModelInfo

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
"""The supported extensions of the protocol. The extension to load and unload models is not
supported."""
_PLATFORM = "sluicegate"
_FIRST = "1"
_TYPES: dict[str, str] = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT64": "TYPE_INT64"}
_Served = Callable[[str], ServedModel | None]


class OipServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of the gateway."""

    name: str = "sluicegate"
    """A constant."""
    version: str
    """The version of the gateway."""
    extensions: tuple[str, ...] = EXTENSIONS
    """The supported extensions of the protocol."""


class OipTensorMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output of a model."""

    name: str
    """The name to use in requests."""
    datatype: str
    """The type of its elements."""
    shape: list[int]
    """The number of rows and the size of a row. -1 stands for any number."""


class OipModelMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A model, and the tensors of all its tasks."""

    name: str
    """The name to use in requests."""
    versions: list[str]
    """The numbers of the model's revisions that are served."""
    platform: str = _PLATFORM
    """A constant."""
    inputs: list[OipTensorMetadata]
    """The inputs of the model."""
    outputs: list[OipTensorMetadata]
    """The outputs of the model."""


class OipTensorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output in a model's configuration."""

    name: str
    """The name to use in requests."""
    data_type: str
    """The type of its elements."""
    dims: list[int]
    """The size of a row. -1 stands for any size."""
    optional: bool = False
    """Whether requests may omit the input."""


class OipParameter(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a parameter of a model."""

    string_value: str
    """The value, as text."""


class OipModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model's configuration, in Triton's format."""

    name: str
    """The name to use in requests."""
    platform: str = _PLATFORM
    """A constant."""
    backend: str = _PLATFORM
    """A constant."""
    max_batch_size: int
    """The most items that a request may have."""
    input: list[OipTensorConfig]
    """The inputs of the model."""
    output: list[OipTensorConfig]
    """The outputs of the model."""
    dynamic_batching: dict[str, int] = {}
    """Present because the gateway batches the rows of all requests."""
    parameters: dict[str, OipParameter]
    """`tasks`, `revision` and `profile`. A classifier also has `labels`, a JSON list in the order
    of the output `SCORES`."""


class OipIndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a model that is served."""

    name: str
    """The name to use in requests."""
    version: str
    """The number of the revision."""
    state: Literal["READY"] = "READY"
    """Always `READY`, because only served versions are listed."""
    reason: str = ""
    """Always empty."""


class OipItemStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Always 0, because an API key must not see how others use a model."""

    count: int = 0
    """Always 0."""
    ns: int = 0
    """Always 0."""


_NONE = OipItemStatistics()


class OipInferStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics that are always 0, for clients that require these fields."""

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
    """A version of a model. Its statistics are always 0; operators use `/metrics`."""

    name: str
    """The name to use in requests."""
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
    """Holds a model, and the name and version under which the gateway serves it."""

    served: ServedModel | None
    name: str
    """The name of the version in the gateway."""
    version: str
    """The number of the version. It is empty if a traffic split divides the items among
    revisions."""
    visible: Sequence[ServedModel] = ()
    """All models that are visible to the caller."""

    def known(self) -> ServedModel:
        """Return the served model.

        Raises:
            ModelNotFound: the model is not served.
        """
        if self.served is None:
            raise model_not_found(self.name, self.visible, listed_by="POST /v2/repository/index")
        return self.served


def find_model(served: _Served, name: str, version: str = "") -> FoundModel:
    """Return the model with this name and version.

    `served` looks up a model by its name. It finds only models that are visible to the caller.
    """
    found = served(name)
    sharing = _sharing(found.info) if found is not None else []
    if sharing and version in ("", *(sharing if len(sharing) == 1 else ())):
        return FoundModel(found, name, sharing[0] if len(sharing) == 1 else "")
    named = f"{name}@{version}" if version else name
    return FoundModel(served(named), named, version)


def versions(info: ModelInfo) -> list[str]:
    """Return the numbers of all revisions of a model that requests can choose."""
    serving = info.serving
    apart = [] if serving is None else list(serving.preload)
    if serving is not None and serving.shadow is not None:
        apart.append(serving.shadow.revision)
    return sorted({*_sharing(info), *apart}, key=lambda number: (len(number), number))


def model_metadata(found: FoundModel, name: str, version: str = "") -> OipModelMetadata:
    """Return the metadata of a model, or of one `version` of it.

    Raises:
        ModelNotFound: the model is not served.
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
    """Return the configuration of a model. `max_items` is the most items that a request may have.

    Raises:
        ModelNotFound: the model is not served.
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
    """Return the versions of `models`, which must contain only models that the API key may see."""
    return [OipIndexEntry(name=name, version=number) for name, number in _each_version(models)]


def model_statistics(models: Iterable[ServedModel]) -> list[OipModelStatistics]:
    """Return each version of `models`, with statistics of 0."""
    return [OipModelStatistics(name=name, version=number) for name, number in _each_version(models)]


def _each_version(models: Iterable[ServedModel]) -> Iterator[tuple[str, str]]:
    """Yield the model's name and the number of each version."""
    for model in models:
        name = model.info.name
        if "@" not in name:
            for number in versions(model.info):
                yield name, number


def _sharing(info: ModelInfo) -> list[str]:
    """Return the numbers of the revisions that serve requests without a version."""
    if info.serving is None or not info.serving.revisions:
        return [info.name.partition("@")[2] or _FIRST]
    return list(info.serving.revisions)


def _tensors(info: ModelInfo) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the inputs and outputs of all tasks of a model.

    An input is required only if all tasks require it.
    """
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
