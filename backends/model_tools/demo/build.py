"""Builds the repository of demo models if it is missing or outdated.

Each model is built in a temporary folder, and then renamed into the repository. The manifest, a
list of all built files, is written last, so the next start repeats an interrupted build. The build
replaces only revisions that an earlier build wrote. It keeps all other models, even a model that
has the name of a demo model.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from sluicegate.backends.model_tools.demo.source import (
    FILES,
    DemoModelsError,
    check_source,
    find_source,
)
from sluicegate.backends.repository.staging import open_staging

MANIFEST = ".complete.json"
VERSION = "1"
# Encoders, and how many of the published layers each one keeps (`None`: all).
ENCODERS: Mapping[str, int | None] = MappingProxyType({"minilm": None, "minilm-l0": 0})

_PACKAGE = Path(__file__).parent
_MODELS = _PACKAGE / "models"
_HEADS = _PACKAGE / "heads"
# All inputs of the build: the weights, the heads, and the code that builds the models.
_SOURCES = (
    (_MODELS, "**/*"),
    (_HEADS, "**/*"),
    (_PACKAGE, "*.py"),
    (_PACKAGE.parent / "graphs", "*.py"),
    (_PACKAGE.parent / "importing", "device_graphs.py"),
)
# A hidden file in each revision, with the digests of the files that the build wrote.
_MARK = ".sluicegate-demo.json"
_STAGING = ".building-"
_LOCK = ".lock"


def build_demo_models(
    target: Path, progress: Callable[[str], None], *, source: Path | None = None
) -> None:
    """Build the demo models that `target` lacks; return immediately if it has all of them.

    A folder with the name of a demo model is kept and reported in two cases: no build wrote the
    folder, or somebody changed it after the build. `source` is the folder of the published weights;
    the default is the installed package.

    Raises:
        DemoModelsError: the weights are missing or broken, or `target` cannot be written.
    """
    fingerprint = _fingerprint()
    try:
        foreign = _complete(target, fingerprint)
        if foreign is None:
            target.mkdir(parents=True, exist_ok=True)
            with _sole_builder(target):
                foreign = _complete(target, fingerprint)
                if foreign is None:
                    foreign = _build(target, fingerprint, progress, source)
    except OSError as error:
        raise DemoModelsError(f"cannot write the demo models to `{target}`: {error}") from error
    for name in foreign:
        progress(
            f"`{target / name}` was not written by this program, or was changed since; it is kept, "
            "and the demo model of that name is not served"
        )


def _build(
    target: Path, fingerprint: str, progress: Callable[[str], None], source: Path | None
) -> list[str]:
    """Build every model; return the names of demo models whose folders are not from a build."""
    source = find_source() if source is None else source
    progress("Checking the weights of the demo models")
    check_source(source)
    with open_staging(target, _STAGING) as staging:
        progress("Building the demo models")
        _stage(staging, source)
        sizes = _sizes(staging)
        foreign = [name for name in _names() if not _publish(staging, target, name)]
        own = {path: size for path, size in sizes.items() if path.partition("/")[0] not in foreign}
        manifest = {"fingerprint": fingerprint, "files": own, "left": foreign}
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        (staging / MANIFEST).replace(target / MANIFEST)
    progress(f"Built {len(_names()) - len(foreign)} demo models in {target}")
    return foreign


def _stage(staging: Path, source: Path) -> None:
    for folder in _models():
        version = staging / folder.name / VERSION
        shutil.copytree(folder, version)
        head = _HEADS / f"{folder.name}.npz"
        if head.exists():
            shutil.copyfile(head, version / "head.npz")
    try:
        # Imported late, because a start with complete models does not need `onnx`.
        from sluicegate.backends.model_tools.demo.encoder import write_encoder  # noqa: PLC0415
    except ImportError as error:
        raise DemoModelsError(
            f"building the demo models needs the package `{error.name}`: install it with "
            f"`pip install {error.name}`"
        ) from error
    for name, layers in ENCODERS.items():
        write_encoder(source, staging / name / VERSION, layers=layers)
    for name in _names():
        _sign(staging / name / VERSION)


def _publish(staging: Path, target: Path, name: str) -> bool:
    """Move a model into its place; return `False` if a model that is not from a build is there."""
    built, version = staging / name / VERSION, target / name / VERSION
    if version.exists():
        if not _is_own(version, built):
            return False
        version.rename(staging / f"replaced-{name}")
    elif any(not path.name.startswith(".") for path in version.parent.glob("*")):
        return False
    version.parent.mkdir(exist_ok=True)
    built.rename(version)
    return True


def _models() -> list[Path]:
    return sorted(folder for folder in _MODELS.iterdir() if folder.is_dir())


def _names() -> list[str]:
    return [folder.name for folder in _models()]


def _sizes(root: Path) -> dict[str, int]:
    return {
        path.relative_to(root).as_posix(): path.stat().st_size
        for name in _names()
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


def _complete(target: Path, fingerprint: str) -> list[str] | None:
    """Return the demo models that are not from a build; `None` if a model must be built."""
    try:
        manifest = json.loads((target / MANIFEST).read_bytes())
        foreign = [str(name) for name in manifest["left"]]
        is_complete = (
            manifest["fingerprint"] == fingerprint
            and all((target / name).is_dir() for name in foreign)
            and all(
                (target / name).stat().st_size == size for name, size in manifest["files"].items()
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return foreign if is_complete else None


def _fingerprint() -> str:
    """Return the digest of the weights, the heads, and the code that builds the models."""
    digest = hashlib.sha256(json.dumps(dict(FILES)).encode())
    for root, pattern in _SOURCES:
        for path in sorted(path for path in root.glob(pattern) if path.is_file()):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()}:{len(content)}:".encode())
            digest.update(content)
    return digest.hexdigest()


def _sign(revision: Path) -> None:
    """Write the mark into a complete revision."""
    text = json.dumps({"files": _digests(revision)}, indent=1)
    (revision / _MARK).write_text(text, encoding="utf-8")


def _is_own(revision: Path, built: Path) -> bool:
    """Return whether a build wrote a revision, even if the revision was damaged afterwards.

    `built` is the same revision, built again. A file counts as written by the build if it is
    unchanged, or if it is a truncated copy of the file in `built`. If the revision contains a file
    of any other kind, somebody has changed the revision.
    """
    try:
        signed = json.loads((revision / _MARK).read_bytes())["files"]
        return all(
            signed.get(name) == digest or _is_beginning(revision / name, built / name)
            for name, digest in _digests(revision).items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _is_equal(revision, built)


def _is_equal(revision: Path, built: Path) -> bool:
    """Whether a revision without a mark equals `built`.

    This recognizes revisions of earlier releases, which wrote no marks.
    """
    try:
        return _digests(revision) == _digests(built)
    except OSError:
        return False


def _digests(revision: Path) -> dict[str, str]:
    """Return the digest of each file, except hidden files, which backends write."""
    found = {}
    for path in sorted(revision.rglob("*")):
        parts = path.relative_to(revision).parts
        if path.is_file() and not any(part.startswith(".") for part in parts):
            with path.open("rb") as file:
                found["/".join(parts)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _is_beginning(path: Path, whole: Path) -> bool:
    if not whole.is_file() or path.stat().st_size > whole.stat().st_size:
        return False
    content = path.read_bytes()
    with whole.open("rb") as file:
        return file.read(len(content)) == content


@contextmanager
def _sole_builder(target: Path) -> Iterator[None]:
    """Lock `target`, so that only one process builds in it.

    If the process ends, the lock is free again.
    """
    descriptor = os.open(target / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
