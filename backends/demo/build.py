"""Builds the repository of demo models: once, whole, and again only when something changed.

A version of a model appears in the target by one rename, complete. The manifest is written last,
so an interrupted build is seen and done again. Models of others in the target stay as they are.
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

from backends.demo.errors import DemoModelsError
from backends.demo.source import FILES, check_source, find_source

MANIFEST = ".complete.json"
VERSION = "1"
# Encoders, and how many of the published layers each keeps (`None`: all).
ENCODERS: Mapping[str, int | None] = MappingProxyType({"minilm": None, "minilm-l2": 2})

_PACKAGE = Path(__file__).parent
_MODELS = _PACKAGE / "models"
_HEADS = _PACKAGE / "heads"
_GRAPHS = _PACKAGE.parent / "graphs"
_STAGING = ".building"
_LOCK = ".lock"


def build_demo_models(
    target: Path, progress: Callable[[str], None], *, source: Path | None = None
) -> None:
    """Make `target` hold every demo model; returns at once when it does already.

    `source` is the folder of the published weights, by default that of the installed package.

    Raises:
        DemoModelsError: the weights are missing or broken, or `target` cannot be written.
    """
    fingerprint = _fingerprint()
    if _is_complete(target, fingerprint):
        return
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _sole_builder(target):
            if not _is_complete(target, fingerprint):
                _build(target, fingerprint, progress, source)
    except OSError as error:
        raise DemoModelsError(f"cannot write the demo models to `{target}`: {error}") from error


def _build(
    target: Path, fingerprint: str, progress: Callable[[str], None], source: Path | None
) -> None:
    source = find_source() if source is None else source
    progress("Checking the weights of the demo models")
    check_source(source)
    staging = target / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        progress("Building the demo models")
        _stage(staging, source)
        sizes = _sizes(staging)
        for folder in _models():
            _publish(staging, target, folder.name)
        manifest = {"fingerprint": fingerprint, "files": sizes}
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        (staging / MANIFEST).replace(target / MANIFEST)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    progress(f"Built {len(_models())} demo models in {target}")


def _stage(staging: Path, source: Path) -> None:
    for folder in _models():
        version = staging / folder.name / VERSION
        shutil.copytree(folder, version)
        head = _HEADS / f"{folder.name}.npz"
        if head.exists():
            shutil.copyfile(head, version / "head.npz")
    try:
        # Only building needs `onnx`: a start that finds the models complete does without.
        from backends.demo.encoder import write_encoder  # noqa: PLC0415
    except ImportError as error:
        raise DemoModelsError(
            f"building the demo models needs the package `{error.name}`: install it with "
            f"`pip install {error.name}`"
        ) from error
    for name, layers in ENCODERS.items():
        write_encoder(source, staging / name / VERSION, layers=layers)


def _publish(staging: Path, target: Path, name: str) -> None:
    version = target / name / VERSION
    version.parent.mkdir(exist_ok=True)
    if version.exists():
        version.rename(staging / f"replaced-{name}")
    (staging / name / VERSION).rename(version)


def _models() -> list[Path]:
    return sorted(folder for folder in _MODELS.iterdir() if folder.is_dir())


def _sizes(root: Path) -> dict[str, int]:
    return {
        path.relative_to(root).as_posix(): path.stat().st_size
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def _is_complete(target: Path, fingerprint: str) -> bool:
    try:
        manifest = json.loads((target / MANIFEST).read_bytes())
        return manifest["fingerprint"] == fingerprint and all(
            (target / name).stat().st_size == size for name, size in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _fingerprint() -> str:
    """Digest of all that shapes the models: the weights, the heads, and the code that builds."""
    digest = hashlib.sha256(json.dumps(dict(FILES)).encode())
    for root in (_MODELS, _HEADS, _PACKAGE, _GRAPHS):
        pattern = "*.py" if root in {_PACKAGE, _GRAPHS} else "**/*"
        for path in sorted(path for path in root.glob(pattern) if path.is_file()):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()}:{len(content)}:".encode())
            digest.update(content)
    return digest.hexdigest()


@contextmanager
def _sole_builder(target: Path) -> Iterator[None]:
    """Wait until no other process builds in `target`; the lock ends with its process."""
    descriptor = os.open(target / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
