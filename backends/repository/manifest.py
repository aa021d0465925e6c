"""What a `model.yaml` may say."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from backends.errors import ModelProblem
from backends.protocol import Task

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
File = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Outputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names of a graph's outputs; a graph without one of them cannot feed its heads."""

    pooled: str | None = None
    tokens: str | None = None


class EncoderManifest(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="encoder",
):
    """An encoder graph. `truncate` cuts texts that are too long instead of refusing them."""

    description: str = ""
    graph: File
    tokenizer: File
    max_tokens: Count
    dimensions: Count
    profile: Name = "fp32"
    tasks: list[Task] = []
    outputs: Outputs = Outputs(pooled="pooled")
    truncate: bool = False
    demonstration: bool = False


class HeadManifest(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="head",
):
    """A trained head over an encoder."""

    description: str = ""
    encoder: Name
    task: Task
    output: Literal["pooled", "tokens"]
    labels: Annotated[list[str], msgspec.Meta(min_length=1)]
    weights: File
    function: Literal["softmax", "sigmoid", "none"] = "softmax"
    activation: Literal["relu", "gelu"] = "relu"
    normalize_input: bool = False
    demonstration: bool = False


class AlgorithmManifest(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="algorithm",
):
    """Code over other models: the one `encoder`, or those it `uses`, in the order it knows.

    `options` are the algorithm's own. `code` names the code of an algorithm `custom`.
    """

    description: str = ""
    algorithm: Name
    encoder: Name | None = None
    uses: list[Name] = []
    tasks: Annotated[list[Task], msgspec.Meta(min_length=1)]
    options: dict[str, Any] = {}
    code: str | None = None
    demonstration: bool = False


Manifest = EncoderManifest | HeadManifest | AlgorithmManifest


def read_manifest(path: Path) -> Manifest:
    """Read a `model.yaml`.

    Raises:
        ModelProblem: it is missing, is no YAML, or says what it may not; the message names the
            file and the field.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelProblem(f"{path}: the file is missing") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        where = " ".join(str(error).split())
        raise ModelProblem(f"{path}: it cannot be read as YAML: {where}") from None
    try:
        manifest: Manifest = msgspec.convert(document, Manifest)
    except msgspec.ValidationError as error:
        raise ModelProblem(f"{path}: {error}") from None
    _check(manifest, path)
    return manifest


def _check(manifest: Manifest, path: Path) -> None:
    """Refuse what only looks right."""
    if isinstance(manifest, EncoderManifest):
        wrong = _check_encoder(manifest)
    elif isinstance(manifest, HeadManifest):
        wrong = _check_head(manifest)
    else:
        wrong = None if builds_on(manifest) else "`encoder` or `uses` must name a model"
    if wrong is not None:
        raise ModelProblem(f"{path}: {wrong}")


def _check_encoder(manifest: EncoderManifest) -> str | None:
    if manifest.outputs == Outputs():
        return "`outputs` names no output; name `pooled` or `tokens`"
    if not set(manifest.tasks) <= {Task.EMBED, Task.RERANK}:
        return "`tasks` of an encoder are `embed` and `rerank`"
    if manifest.tasks and manifest.outputs.pooled is None:
        return "`tasks` need an output `pooled`"
    return None


def _check_head(manifest: HeadManifest) -> str | None:
    outputs = {Task.CLASSIFY: "pooled", Task.ENTITIES: "tokens"}
    if manifest.task not in outputs:
        return "`task` of a head is `classify` or `entities`"
    if manifest.output != outputs[manifest.task]:
        return f"`output` must be `{outputs[manifest.task]}` for `{manifest.task}`"
    if len(set(manifest.labels)) != len(manifest.labels):
        return "`labels` holds one of them twice"
    return None


def builds_on(manifest: Manifest) -> list[str]:
    """Return the names of the models a model needs."""
    if isinstance(manifest, EncoderManifest):
        return []
    if isinstance(manifest, HeadManifest):
        return [manifest.encoder]
    return [*([manifest.encoder] if manifest.encoder else []), *manifest.uses]
