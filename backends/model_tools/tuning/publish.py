"""Publishes an accepted variant in the repository as the model's next revision."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import yaml

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.graphs.weight_file import CHANGED, NAME
from sluicegate.backends.model_tools.tuning.tuned_model import TunedModel
from sluicegate.backends.model_tools.tuning.variant_gate import VariantReport
from sluicegate.backends.qualification.certificate import FILE
from sluicegate.backends.qualification.device_graphs import DEVICE_GRAPH_FILES
from sluicegate.backends.repository.model import Model
from sluicegate.backends.repository.publishing import publish_revision
from sluicegate.backends.repository.staging import open_staging

_LONGEST_NAME = 64
_STAGING = ".tuning-"


def publish(
    models: Path, subject: TunedModel, graph: bytes | None, report: VariantReport
) -> list[Path]:
    """Write the model's next revision atomically; return the folders that were written.

    If no `graph` is given, the model keeps its files and device graphs, and only its precision
    changes.

    In two cases, the variant becomes a new model instead, so that other models stay unchanged:

    - A head's encoder was judged only for this head. So its variant becomes a new encoder,
      whose name contains the head's name. The head's next revision uses the new encoder.
    - The model is an encoder on which other models build.

    Raises:
        StartProblem: the repository cannot be written, or another model has the new name.
    """
    certificate = msgspec.json.format(msgspec.json.encode(report), indent=1)
    model, graph_model, precision = subject.model, subject.graph_model, report.precision
    files = {FILE: certificate}
    if graph is not None:
        files[subject.manifest.graph] = graph
    try:
        if graph_model is model and not (subject.measure == "vectors" and subject.dependents):
            return [_write(models, model, {"profile": precision}, files)]
        if graph_model is model:
            name = f"{model.name}-{precision}"[:_LONGEST_NAME]
            described = {"description": f"`{model.name}` in {precision}.", "profile": precision}
            _check_name(models / name, described["description"])
            return [_write(models, model, described, files, name=name)]
        name = f"{graph_model.name}-{precision}-{model.name}"[:_LONGEST_NAME]
        encoder = {
            "description": f"`{graph_model.name}` in {precision}, judged for `{model.name}`.",
            "profile": precision,
            "tasks": [],
        }
        _check_name(models / name, str(encoder["description"]))
        return [
            _write(models, graph_model, encoder, files, name=name),
            _write(models, model, {"encoder": name}, {}),
        ]
    except OSError as error:
        raise StartProblem(f"cannot write to `{models}`: {error}") from None


def _write(
    models: Path,
    source: Model,
    changes: dict[str, Any],
    files: dict[str, bytes],
    *,
    name: str | None = None,
) -> Path:
    """Write the next revision: the files of `source`, some of them replaced by `files`.

    `changes` replaces fields of the `model.yaml`. `name` is the name of a new model; without a
    `name`, the revision belongs to the model of `source`.
    """
    model = models / (name or source.name)
    with open_staging(models, _STAGING) as staging:
        draft = staging / model.name
        # Device graphs share the weights of the old graph, so they cannot be kept beside a new
        # graph.
        stale: tuple[str, ...] = () if set(files) <= {FILE} else (DEVICE_GRAPH_FILES,)
        graphs = [content for file, content in files.items() if file.endswith(".onnx")]
        for weights in (NAME, CHANGED) if graphs else ():
            if not any(weights.encode() in graph for graph in graphs):
                stale = (*stale, weights)
        ignored = shutil.ignore_patterns(".*", *stale, *files)
        shutil.copytree(source.folder, draft, ignore=ignored)
        for file, content in files.items():
            (draft / file).write_bytes(content)
        written = source.file("model.yaml")
        manifest = (yaml.safe_load(written.read_bytes()) or {}) if written.is_file() else {}
        text = yaml.safe_dump(manifest | changes, sort_keys=False, allow_unicode=True)
        (draft / "model.yaml").write_text(text, encoding="utf-8")
        return publish_revision(draft, model)


def _check_name(model: Path, description: str) -> None:
    """Refuse the new name if an unrelated model already has it.

    Raises:
        StartProblem: a model has this name, and was not made for the same head.
    """
    for revision in model.iterdir() if model.is_dir() else ():
        if not revision.name.isdecimal():
            continue
        try:
            manifest = yaml.safe_load((revision / "model.yaml").read_bytes())
            is_own = manifest["description"] == description
        except (OSError, yaml.YAMLError, KeyError, TypeError):
            is_own = False
        if not is_own:
            raise StartProblem(
                f"the variant's name would be `{model.name}`, but `{revision}` is another model; "
                "rename that model"
            )
