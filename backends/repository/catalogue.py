"""The models of a repository directory: `<models>/<name>/<revision>/model.yaml`."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from backends.errors import ModelProblem, StartProblem
from backends.open_inference.address import Servers, Upstream
from backends.open_inference.client import fingerprint
from backends.repository.manifest import (
    NAME,
    Entry,
    GraphManifest,
    Manifest,
    SplitManifest,
    builds_on,
    read_manifest,
)
from backends.repository.serving import FILE, Serving, Shadow, read_serving
from backends.repository.triton import FILE as TRITON, TritonConfig, read_triton

_DIGITS = 12


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be loaded. `digest` covers its files and the models it builds on.

    `inferred` says of each field that its `model.yaml` leaves out what told it. A `shadow` changes
    no answer, so it is no part of the digest. `beside` holds what revisions share, in Triton's
    layout. With an `upstream` another server runs it.
    """

    name: str
    folder: Path
    manifest: Manifest
    digest: str
    inferred: dict[str, str] = {}
    shadow: Shadow | None = None
    beside: Path | None = None
    upstream: Upstream | None = None

    def file(self, name: str) -> Path:
        """Return where a file of the model lies: in its folder, or beside that."""
        return find_file(self.folder, self.beside, name)

    @property
    def revision(self) -> str:
        """The short form of the digest, which calls name."""
        return self.digest[:_DIGITS]


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """What a repository holds: models, each after those it builds on, and what is wrong.

    `upstreams` holds the fingerprints of models that other servers run, "" of those not ready.
    """

    models: dict[str, Model]
    problems: dict[str, str]
    upstreams: dict[Upstream, str] = {}


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    folder: Path
    entry: Entry
    own_digest: str
    shadow: Shadow | None = None
    beside: Path | None = None
    upstream: Upstream | None = None


def read_catalogue(root: Path, servers: Servers | None = None) -> Catalogue:
    """Read every model; a broken one takes only those with it that build on it.

    Raises:
        StartProblem: `root` is no directory.
    """
    if not root.is_dir():
        raise StartProblem(
            f"the models directory `{root}` does not exist; build or copy the models there, or "
            "name another directory"
        )
    found: dict[str, _Found] = {}
    problems: dict[str, str] = {}
    for folder in sorted(root.iterdir()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        try:
            found |= _read_model(folder, problems)
        except ModelProblem as error:
            problems[folder.name] = str(error)
    upstreams = _ask_upstreams(found, problems, servers or Servers())
    models: dict[str, Model] = {}
    for name in found:
        _resolve(name, found, models, problems, ())
    return Catalogue(models=models, problems=problems, upstreams=upstreams)


def _ask_upstreams(
    found: dict[str, _Found], problems: dict[str, str], servers: Servers
) -> dict[Upstream, str]:
    """Say of models where they run, if not here; return the fingerprints.

    What a server says of a model is part of its digest where there is no graph to tell one from
    another.
    """
    prints: dict[Upstream, str] = {}
    for name, own in found.items():
        manifest = own.entry.manifest
        if not isinstance(manifest, GraphManifest):
            continue
        name_there, version = own.folder.parent.name, own.folder.name
        upstream = servers.find(manifest.upstream, name=name_there, version=version)
        if upstream is None:
            continue
        if not upstream.url:
            problems[name] = (
                f"{own.folder}: name the `url` of its `upstream`, or set "
                "`SLUICEGATE_BACKEND_UPSTREAM_URL`"
            )
            continue
        if upstream not in prints:
            prints[upstream] = fingerprint(upstream, servers.token_for(upstream))
        if not prints[upstream]:
            problems[name] = f"{own.folder}: {upstream} is not ready"
            continue
        digest = own.own_digest + ("" if manifest.graph else prints[upstream])
        found[name] = msgspec.structs.replace(own, own_digest=digest, upstream=upstream)
    return prints


def _read_model(folder: Path, problems: dict[str, str]) -> dict[str, _Found]:
    """Return what a folder serves: the model, and revisions of it that are models of their own."""
    if not NAME.fullmatch(folder.name):
        raise ModelProblem(
            f"{folder}: no model can have this name; rename the folder: at most 64 lower-case "
            "letters, digits, `.`, `_`, `-`, a letter or digit first"
        )
    numbers = [p.name for p in folder.iterdir() if p.is_dir() and p.name.isdecimal()]
    if not numbers:
        raise ModelProblem(f"{folder}: it has no revision folder (`1`, `2`, ...)")
    triton = read_triton(folder)
    serving = read_serving(folder) or (triton.serving(numbers) if triton else Serving())
    shares = serving.revisions or {max(numbers, key=int): 1}
    aside = [*serving.preload, *([serving.shadow.revision] if serving.shadow else [])]
    _check_revisions(folder, numbers, shares, aside, serving.shadow)
    found: dict[str, _Found] = {}
    for number in dict.fromkeys([*(shares if len(shares) > 1 else ()), *aside]):
        try:
            found[f"{folder.name}@{number}"] = _read_revision(folder / number, triton)
        except ModelProblem as error:
            problems[f"{folder.name}@{number}"] = str(error)
    if len(shares) == 1:
        (only,) = shares
        answering = _read_revision(folder / only, triton)
    else:
        answering = _split(folder, shares)
    found[folder.name] = msgspec.structs.replace(answering, shadow=serving.shadow)
    return found


def _check_revisions(
    folder: Path,
    numbers: Sequence[str],
    shares: Mapping[str, int],
    aside: Sequence[str],
    shadow: Shadow | None,
) -> None:
    where = folder / (FILE if (folder / FILE).is_file() else TRITON)
    for number in (*shares, *aside):
        if number not in numbers:
            raise ModelProblem(f"{where}: there is no revision `{number}`")
    if shadow is not None and shadow.revision in shares:
        raise ModelProblem(
            f"{where}: the `shadow` is revision `{shadow.revision}`, which answers already; name "
            "under `revisions` those that answer"
        )


def _split(folder: Path, shares: Mapping[str, int]) -> _Found:
    arms = {f"{folder.name}@{number}": weight for number, weight in shares.items()}
    entry = Entry(manifest=SplitManifest(arms=arms))
    plan = hashlib.blake2b(repr(sorted(arms.items())).encode()).hexdigest()
    return _Found(folder=folder, entry=entry, own_digest=plan)


def _read_revision(folder: Path, triton: TritonConfig | None) -> _Found:
    beside = folder.parent if triton else None
    told = triton.told if triton else {}
    entry = read_manifest(folder, lambda name: find_file(folder, beside, name), told)
    for field in ("graph", "tokenizer", "weights"):
        name = getattr(entry.manifest, field, None)
        if name and not find_file(folder, beside, name).is_file():
            raise ModelProblem(f"{folder / name}: the file `{field}` names is missing")
    digest = _digest_files(folder)
    if beside is not None:
        digest += _digest_files(beside, without=str.isdecimal)
    return _Found(folder=folder, entry=entry, own_digest=digest, beside=beside)


def find_file(folder: Path, beside: Path | None, name: str) -> Path:
    """Return where a file lies, in `folder` unless only `beside` has it."""
    if beside is not None and not (folder / name).exists() and (beside / name).exists():
        return beside / name
    return folder / name


def _resolve(
    name: str,
    found: Mapping[str, _Found],
    models: dict[str, Model],
    problems: dict[str, str],
    path: tuple[str, ...],
) -> Model | None:
    """Add `name` to `models` after what it builds on; `None` where that cannot be served."""
    if name in models or name in problems or name not in found:
        return models.get(name)
    if name in path:
        problems[name] = f"it builds on itself: {' -> '.join((*path, name))}"
        return None
    own = found[name]
    manifest = own.entry.manifest
    below = []
    for needed in builds_on(manifest):
        model = _resolve(needed, found, models, problems, (*path, name))
        if model is None:
            state = "is broken" if needed in problems else "is not in the repository"
            problems.setdefault(name, f"it builds on `{needed}`, which {state}")
            return None
        below.append(model.digest)
    digest = hashlib.blake2b("".join([own.own_digest, *below]).encode()).hexdigest()
    models[name] = Model(
        name=name,
        folder=own.folder,
        manifest=manifest,
        digest=digest,
        inferred=own.entry.inferred,
        shadow=own.shadow,
        beside=own.beside,
        upstream=own.upstream,
    )
    return models[name]


def _digest_files(folder: Path, *, without: Callable[[str], bool] = lambda _: False) -> str:
    """Digest the name and content of every file, each with its length before it."""
    digest = hashlib.blake2b()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        first, *_ = parts = name.split("/")
        if not path.is_file() or any(map(_is_aside, parts)) or without(first):
            continue
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "blake2b").digest()
        except OSError as error:
            raise ModelProblem(f"{path}: it cannot be read: {error.strerror}") from None
        digest.update(len(name.encode()).to_bytes(8, "little") + name.encode() + content)
    return digest.hexdigest()


def _is_aside(part: str) -> bool:
    """Whether a file or folder is no part of a model: hidden, or Python's byte code."""
    return part.startswith(".") or part == "__pycache__"
