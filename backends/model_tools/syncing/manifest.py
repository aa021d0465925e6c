"""Reads and writes OCI manifests, which list files by digest.

An artifact has one blob for each file. The title of a blob is the path of its file, such as
`sentiment/1/model.onnx`. `oras` and other tools write artifacts in the same way. A container image
has layers instead, which are archives of folders.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.repository.names import NAME
from sluicegate.backends.repository.sync_record import Digest, FileDigest

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
ARTIFACT = "application/vnd.sluicegate.models.v1"
TITLE = "org.opencontainers.image.title"
REF = "org.opencontainers.image.ref.name"
UNPACK = "io.deis.oras.content.unpack"
EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_FILE_TYPE = "application/octet-stream"
# The limits of file systems, less some room for the repository's own path.
_LONGEST_NAME, _LONGEST_PATH = 255, 1000
_MOST_BYTES = 4 << 20
_MOST_SECONDS = 60.0
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_LAYER_TYPES = ("application/vnd.oci.image.layer", "application/vnd.docker.image.rootfs")


class SyncProblem(StartProblem):
    """Says why a sync or a push failed; the repository is unchanged."""


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Identifies a blob by type, digest and size, as in OCI's image specification."""

    media_type: str = ""
    digest: Digest
    size: int
    annotations: dict[str, str] | None = None
    platform: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        """The path of the file that the blob holds."""
        return (self.annotations or {}).get(TITLE, "")

    @property
    def is_archive(self) -> bool:
        """Whether the blob is an archive: an image's layer, or a folder that `oras` pushed."""
        if self.title and UNPACK not in (self.annotations or {}):
            return False
        return self.media_type.startswith(_LAYER_TYPES)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Lists the blobs of an artifact or an image in `layers`, or other manifests in `manifests`."""

    media_type: str = ""
    artifact_type: str = ""
    config: Descriptor | None = None
    layers: list[Descriptor] = []
    manifests: list[Descriptor] = []

    def encode(self) -> bytes:
        """Return the manifest as JSON; equal manifests give equal bytes."""
        return msgspec.json.encode({"schemaVersion": 2} | msgspec.to_builtins(self))


def sha256(content: bytes) -> str:
    """Return the digest of `content` in the notation of manifests."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read_document(chunks: Iterable[bytes], what: str) -> bytes:
    """Return a small document that arrives in chunks; `what` describes it in errors.

    Raises:
        SyncProblem: the document is too large, or takes too long.
    """
    deadline = time.monotonic() + _MOST_SECONDS
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > _MOST_BYTES:
            raise SyncProblem(f"{what} is larger than {_MOST_BYTES} bytes")
        if time.monotonic() > deadline:
            raise SyncProblem(f"{what} took longer than {_MOST_SECONDS:g} seconds to arrive")
    return bytes(content)


def read_manifest(content: bytes, where: str) -> Manifest:
    """Return the manifest in `content`.

    Raises:
        SyncProblem: the content is not a manifest.
    """
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SyncProblem(f"{where}: not a manifest of an OCI image: {error}") from None


def for_this_machine(manifests: Sequence[Descriptor]) -> Descriptor:
    """Return the manifest for this machine's platform; the first one if no platform fits."""
    machine = os.uname().machine
    wanted = ("linux", _MACHINES.get(machine, machine))
    for each in manifests:
        platform = each.platform or {}
        if (platform.get("os"), platform.get("architecture")) == wanted:
            return each
    return manifests[0]


def write_manifest(files: Mapping[str, FileDigest]) -> bytes:
    """Return the manifest of an artifact with these files; equal files give equal bytes."""
    layers = [
        Descriptor(
            media_type=_FILE_TYPE,
            digest=each.digest,
            size=each.size,
            annotations={TITLE: path},
        )
        for path, each in sorted(files.items())
    ]
    config = Descriptor(media_type=_EMPTY_TYPE, digest=sha256(EMPTY), size=len(EMPTY))
    manifest = Manifest(media_type=MANIFEST, artifact_type=ARTIFACT, config=config, layers=layers)
    return manifest.encode()


def artifact_files(manifest: Manifest, where: str) -> dict[str, Descriptor]:
    """Return the blobs of an artifact; keys are the paths of their files.

    Raises:
        SyncProblem: a path is not a path in a model repository, or there are no files.
    """
    files: dict[str, Descriptor] = {}
    for layer in manifest.layers:
        check_path(layer.title, where)
        if layer.title in files:
            raise SyncProblem(f"{where}: the manifest lists `{layer.title}` twice")
        files[layer.title] = layer
    folders = {parent.as_posix() for path in files for parent in PurePosixPath(path).parents}
    if both := sorted(folders & files.keys()):
        raise SyncProblem(f"{where}: `{both[0]}` is both a file and a folder")
    check_repository(files, where)
    return files


def check_path(path: str, where: str) -> None:
    """Check that a path has the form `model/file` or `model/revision/...`.

    Raises:
        SyncProblem: the path has another form, or leads out of the repository.
    """
    model, *rest = path.split("/")
    is_plain = all(part and not part.startswith(".") and part.isprintable() for part in rest)
    # A file name need not be valid UTF-8. Such a name is not printable.
    longest = max(len(part.encode(errors="surrogatepass")) for part in ("", *rest))
    shown = path[:100].encode(errors="backslashreplace").decode()
    if len(path) > _LONGEST_PATH or longest > _LONGEST_NAME:
        raise SyncProblem(
            f"{where}: `{shown}...` is too long: a name may have {_LONGEST_NAME} bytes, and a "
            f"path {_LONGEST_PATH} characters"
        )
    if not NAME.fullmatch(model) or not rest or not is_plain or "\\" in path:
        raise SyncProblem(
            f"{where}: `{shown}` is not a path in a model repository, such as "
            "`sentiment/1/model.onnx`; write the source with `sluicegate models push`"
        )


def check_repository(files: Mapping[str, object], where: str) -> None:
    """Check that `files` contain a revision of a model.

    Raises:
        SyncProblem: they contain no revision.
    """
    if not any(revision_of(path) for path in files):
        raise SyncProblem(f"{where}: there is no revision of a model")


def revision_of(path: str) -> str:
    """Return the revision folder of a file; empty for a file beside the revisions."""
    model, _, below = path.partition("/")
    number, _, file = below.partition("/")
    return f"{model}/{number}" if file and number.isdecimal() else ""
