"""Puts an accepted variant into the repository: its encoder, and the head's next revision."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import yaml

from backends.admission.certificate import FILE
from backends.errors import StartProblem
from backends.tuning.precision import Report
from backends.tuning.subject import Subject

PROFILE = "int8"
_LONGEST_NAME = 64
_DRAFT = ".draft"


def publish(models: Path, subject: Subject, graph: bytes, report: Report) -> list[Path]:
    """Write both, each complete before it is seen, and return their folders.

    The encoder's name holds the head's: it was judged for that head's labels and for no other.

    Raises:
        StartProblem: the repository cannot be written.
    """
    encoder, head = subject.encoder, subject.head
    name = f"{encoder.name}-{PROFILE}-{head.name}"[:_LONGEST_NAME]
    certificate = msgspec.json.format(msgspec.json.encode(report), indent=1)
    encoder_manifest = _manifest(encoder.folder) | {
        "description": f"`{encoder.name}` in {PROFILE}, judged for `{head.name}`.",
        "profile": PROFILE,
        "tasks": [],
    }
    head_manifest = _manifest(head.folder) | {"encoder": name}
    try:
        below = _write(
            models / name,
            encoder.folder,
            encoder_manifest,
            {subject.encoder_manifest.graph: graph, FILE: certificate},
        )
        return [below, _write(models / head.name, head.folder, head_manifest, {})]
    except OSError as error:
        raise StartProblem(f"cannot write to `{models}`: {error}") from None


def _manifest(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((folder / "model.yaml").read_bytes())
    return document


def _write(model: Path, source: Path, manifest: dict[str, Any], files: dict[str, bytes]) -> Path:
    """Write a revision after the newest, of the files of `source` with others in their place."""
    model.mkdir(exist_ok=True)
    draft = model / _DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(source, draft, ignore=shutil.ignore_patterns(".*", *files))
    for name, content in files.items():
        (draft / name).write_bytes(content)
    text = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True)
    (draft / "model.yaml").write_text(text, encoding="utf-8")
    newest = max((int(p.name) for p in model.iterdir() if p.name.isdecimal()), default=0)
    return draft.rename(model / str(newest + 1))
