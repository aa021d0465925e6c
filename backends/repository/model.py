"""Reads a revision of a model: its manifest, and the digest of its files."""

import hashlib
from collections.abc import Collection
from pathlib import Path

import msgspec

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.open_inference.address import RemoteModelServer
from sluicegate.backends.repository.file_digests import digest_files
from sluicegate.backends.repository.manifest import Manifest, read_manifest
from sluicegate.backends.repository.names import is_hidden
from sluicegate.backends.repository.triton import TritonConfig
from sluicegate.wire.plans import Serving, Shadow

_DIGITS = 12


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a model that can be loaded.

    `digest` covers the model's files, the inferred fields, and the models that it builds on. It
    does not cover the shadow revision, which changes no result. `inferred` maps each field that is
    missing in `model.yaml` to the source of its value. `serving` selects the revisions that answer
    calls. `shared_folder` holds the files that all revisions share in Triton's layout. If another
    server runs the model, `upstream` is this server.
    """

    name: str
    folder: Path
    manifest: Manifest
    digest: str
    inferred: dict[str, str] = {}
    serving: Serving | None = None
    shared_folder: Path | None = None
    upstream: RemoteModelServer | None = None

    @property
    def shadow(self) -> Shadow | None:
        """The shadow revision, and the share of the items that it gets."""
        return self.serving.shadow if self.serving is not None else None

    def file(self, name: str) -> Path:
        """Return the path of a file in the model's folder or in the shared folder."""
        return find_file(self.folder, self.shared_folder, name)

    def stamp(self) -> list[tuple[str, int, int]]:
        """Return the names, sizes and times of the model's files, which change when a file does."""
        folders = (self.folder, *([self.shared_folder] if self.shared_folder else []))
        files = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_file()]
        seen = [(path.name, path.stat()) for path in files if not is_hidden(path.name)]
        return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in seen]

    @property
    def size_bytes(self) -> int:
        """The size of the files that take memory while the model is loaded."""
        if self.upstream is not None:
            return 0
        # Descriptions beside a graph are small. Its weights may be in several files.
        return sum(size for name, size, _ in self.stamp() if not name.endswith(".json"))

    @property
    def revision(self) -> str:
        """The first digits of the digest. Calls use them to name the revision."""
        return self.digest[:_DIGITS]


def read_model(name: str, folder: Path, triton: TritonConfig | None) -> Model:
    """Read a revision of a model.

    The result's `digest` does not yet cover the models that this model builds on.

    Raises:
        ModelProblem: the manifest is wrong, or a file is missing or cannot be read.
    """
    shared_folder = folder.parent if triton else None
    manifest, inferred = read_manifest(
        folder,
        lambda file: find_file(folder, shared_folder, file),
        triton.declared if triton else {},
    )
    for field in ("graph", "tokenizer", "weights"):
        file = getattr(manifest, field, None)
        if file and not find_file(folder, shared_folder, file).is_file():
            raise ModelProblem(f"{folder / file}: the file is missing; `{field}` names it")
    digest = digest_files(folder) + _digest_inferred(manifest, inferred)
    if shared_folder is not None:
        digest += digest_files(shared_folder, without=str.isdecimal)
    return Model(
        name=name,
        folder=folder,
        manifest=manifest,
        digest=digest,
        inferred=inferred,
        shared_folder=shared_folder,
    )


def find_file(folder: Path, shared_folder: Path | None, name: str) -> Path:
    """Return a file's path in `folder`, or in `shared_folder` if only that folder has the file."""
    if (
        shared_folder is not None
        and not (folder / name).exists()
        and (shared_folder / name).exists()
    ):
        return shared_folder / name
    return folder / name


def _digest_inferred(manifest: Manifest, inferred: Collection[str]) -> str:
    """Return the digest of the inferred fields; empty if nothing was inferred.

    A model's digest includes the digest of the inferred fields, because another version of this
    program may infer other values.
    """
    values = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    found = {name: value for name, value in values.items() if name in inferred}
    if not found:
        return ""
    return hashlib.blake2b(msgspec.json.encode(found, order="deterministic")).hexdigest()
