"""Publishes an accepted variant in the repository, as the model's next revision."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import yaml

from backends.errors import StartProblem
from backends.model_tools.tuning.tuned_model import TunedModel
from backends.model_tools.tuning.variant_gate import VariantReport
from backends.qualification.certificate import FILE
from backends.qualification.forms import FORM_FILES
from backends.repository.model import Model
from backends.repository.publishing import publish_revision
from backends.repository.staging import open_staging

_LONGEST_NAME = 64
_STAGING = ".tuning-"


def publish(
    models: Path, subject: TunedModel, graph: bytes | None, report: VariantReport
) -> list[Path]:
    """Write the model's next revision, complete before it is seen; return what was written.

    Without a `graph` its files stay, with the forms for other devices: the precision alone is new.
    Below a head that is an encoder as well. Its name holds the head's: it was judged for that
    head's labels and for no other. An encoder that has heads stays as it is for them, and the
    variant gets a name of its own.

    Raises:
        StartProblem: the repository cannot be written, or the encoder's name is another model's.
    """
    certificate = msgspec.json.format(msgspec.json.encode(report), indent=1)
    model, below, profile = subject.model, subject.below, report.profile
    files = {FILE: certificate}
    if graph is not None:
        files[subject.manifest.graph] = graph
    try:
        if below is model and not (subject.measure == "vectors" and subject.dependents):
            return [_write(models, model, {"profile": profile}, files)]
        if below is model:
            name = f"{model.name}-{profile}"[:_LONGEST_NAME]
            described = {"description": f"`{model.name}` in {profile}.", "profile": profile}
            _check_name(models / name, described["description"])
            return [_write(models, model, described, files, name=name)]
        name = f"{below.name}-{profile}-{model.name}"[:_LONGEST_NAME]
        encoder = {
            "description": f"`{below.name}` in {profile}, judged for `{model.name}`.",
            "profile": profile,
            "tasks": [],
        }
        _check_name(models / name, str(encoder["description"]))
        return [
            _write(models, below, encoder, files, name=name),
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
    """Write a revision after the newest: the files of `source`, but for those given.

    Its `model.yaml` is that of `source` with `changes`, under another `name` where one is given.
    """
    model = models / (name or source.name)
    with open_staging(models, _STAGING) as staging:
        draft = staging / model.name
        # Forms for other devices have the weights of the graph, where that is replaced.
        forms = () if set(files) <= {FILE} else (FORM_FILES,)
        ignored = shutil.ignore_patterns(".*", *forms, *files)
        shutil.copytree(source.folder, draft, ignore=ignored)
        for file, content in files.items():
            (draft / file).write_bytes(content)
        written = source.file("model.yaml")
        manifest = (yaml.safe_load(written.read_bytes()) or {}) if written.is_file() else {}
        text = yaml.safe_dump(manifest | changes, sort_keys=False, allow_unicode=True)
        (draft / "model.yaml").write_text(text, encoding="utf-8")
        return publish_revision(draft, model)


def _check_name(model: Path, description: str) -> None:
    """Refuse a folder that is there already and holds another model.

    Raises:
        StartProblem: a revision of it is none that was written for the same head.
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
                f"the variant would be called `{model.name}`, and `{revision}` is another model: "
                "rename that one"
            )
