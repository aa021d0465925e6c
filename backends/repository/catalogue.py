"""Reads the models of a repository directory: `<models>/<name>/<revision>/model.yaml`."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from backends.errors import ModelProblem, StartProblem
from backends.open_inference.address import RemoteModelServer, Servers
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
    """Describes a model that can be loaded. `digest` covers its files and those it builds on.

    `inferred` names the source of each field that its `model.yaml` leaves out. A `shadow` changes
    no answer, so it is no part of the digest. `shared_folder` holds what revisions share, in
    Triton's layout. With an `upstream` another server runs it.
    """

    name: str
    folder: Path
    manifest: Manifest
    digest: str
    inferred: dict[str, str] = {}
    shadow: Shadow | None = None
    shared_folder: Path | None = None
    upstream: RemoteModelServer | None = None

    def file(self, name: str) -> Path:
        """Return the path of a file of the model: in its folder, or the shared one."""
        return find_file(self.folder, self.shared_folder, name)

    @property
    def revision(self) -> str:
        """The short form of the digest, which calls name."""
        return self.digest[:_DIGITS]


class Revisions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds all revisions of a model, and the `shares` of those that answer.

    Without `shares` no readable file selects any.
    """

    folder: Path
    numbers: list[str]
    shares: Mapping[str, int] = {}


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the models of a repository, each after those it builds on, and its problems.

    `blocked` names the models whose problem is caused by that of another, `waiting` those that
    wait for an upstream server. `upstreams` holds the fingerprints of
    models that other servers run, "" of those not ready.
    """

    models: dict[str, Model]
    problems: dict[str, str]
    revisions: dict[str, Revisions] = {}
    blocked: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    upstreams: dict[RemoteModelServer, str] = {}


class _ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    folder: Path
    entry: Entry
    own_digest: str
    shadow: Shadow | None = None
    shared_folder: Path | None = None
    upstream: RemoteModelServer | None = None


class _Findings:
    """Collects models and problems while a repository is read."""

    def __init__(self) -> None:
        self.found: dict[str, _ModelSource] = {}
        self.models: dict[str, Model] = {}
        self.problems: dict[str, str] = {}
        self.revisions: dict[str, Revisions] = {}
        self.blocked: set[str] = set()
        self.waiting: set[str] = set()


def read_catalogue(
    root: Path,
    servers: Servers | None = None,
    *,
    more: Path | None = None,
    pinned: Mapping[str, Mapping[str, int]] | None = None,
) -> Catalogue:
    """Read every model; a broken one takes only those with it that build on it.

    Of a name that is in `more` as well the model of `root` is read. `pinned` holds, for models
    that are not to be served as their folders say, the shares of the revisions that answer.

    Raises:
        StartProblem: `root` or `more` is no directory.
    """
    findings = _Findings()
    for folder in _model_folders(root, more):
        try:
            numbers = _numbers(folder)
            findings.revisions[folder.name] = Revisions(folder=folder, numbers=numbers)
            findings.found |= _read_model(
                folder, numbers, findings, (pinned or {}).get(folder.name)
            )
        except ModelProblem as error:
            findings.problems[folder.name] = str(error)
        except Exception as error:  # noqa: BLE001 - whatever a model's files do, others are served
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            findings.problems[folder.name] = f"{folder}: it cannot be read: {reason}"
    upstreams = _ask_upstreams(findings, servers or Servers())
    for name in findings.found:
        _resolve(name, findings, ())
    return Catalogue(
        models=findings.models,
        problems=findings.problems,
        revisions=findings.revisions,
        blocked=frozenset(findings.blocked),
        waiting=frozenset(findings.waiting),
        upstreams=upstreams,
    )


def _model_folders(root: Path, more: Path | None) -> list[Path]:
    found: dict[str, Path] = {}
    for directory in (root, *([more] if more is not None else [])):
        if not directory.is_dir():
            raise StartProblem(
                f"the models directory `{directory}` does not exist; build or copy the models "
                "there, or name another directory"
            )
        for folder in sorted(directory.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                found.setdefault(folder.name, folder)
    return [found[name] for name in sorted(found)]


def _numbers(folder: Path) -> list[str]:
    if not NAME.fullmatch(folder.name):
        raise ModelProblem(
            f"{folder}: no model can have this name; rename the folder: at most 64 lower-case "
            "letters, digits, `.`, `_`, `-`, a letter or digit first"
        )
    numbers = [p.name for p in folder.iterdir() if p.is_dir() and p.name.isdecimal()]
    if not numbers:
        raise ModelProblem(f"{folder}: it has no revision folder (`1`, `2`, ...)")
    return numbers


def _ask_upstreams(findings: _Findings, servers: Servers) -> dict[RemoteModelServer, str]:
    """Say of models where they run, if not here; return the fingerprints.

    What a server says of a model is part of its digest where there is no graph to tell one from
    another.
    """
    prints: dict[RemoteModelServer, str] = {}
    found, problems = findings.found, findings.problems
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
            findings.waiting.add(name)
            continue
        digest = own.own_digest + ("" if manifest.graph else prints[upstream])
        found[name] = msgspec.structs.replace(own, own_digest=digest, upstream=upstream)
    return prints


def _read_model(
    folder: Path,
    numbers: list[str],
    findings: _Findings,
    pinned: Mapping[str, int] | None,
) -> dict[str, _ModelSource]:
    """Return what a folder serves: the model, and revisions of it that are models of their own."""
    triton = read_triton(folder)
    if pinned is not None:
        serving = Serving(revisions=dict(pinned))
    else:
        serving = read_serving(folder) or (triton.serving(numbers) if triton else Serving())
    shares = serving.revisions or {max(numbers, key=int): 1}
    named_apart = [*serving.preload, *([serving.shadow.revision] if serving.shadow else [])]
    findings.revisions[folder.name] = Revisions(folder=folder, numbers=numbers, shares=shares)
    _check_revisions(folder, numbers, shares, named_apart, serving.shadow)
    found: dict[str, _ModelSource] = {}
    for number in dict.fromkeys([*(shares if len(shares) > 1 else ()), *named_apart]):
        try:
            found[f"{folder.name}@{number}"] = _read_revision(folder / number, triton)
        except ModelProblem as error:
            findings.problems[f"{folder.name}@{number}"] = str(error)
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
    named_apart: Sequence[str],
    shadow: Shadow | None,
) -> None:
    where = folder / (FILE if (folder / FILE).is_file() else TRITON)
    for number in (*shares, *named_apart):
        if number not in numbers:
            raise ModelProblem(f"{where}: there is no revision `{number}`")
    if shadow is not None and shadow.revision in shares:
        raise ModelProblem(
            f"{where}: the `shadow` is revision `{shadow.revision}`, which answers already; name "
            "under `revisions` those that answer"
        )


def _split(folder: Path, shares: Mapping[str, int]) -> _ModelSource:
    arms = {f"{folder.name}@{number}": weight for number, weight in shares.items()}
    entry = Entry(manifest=SplitManifest(arms=arms))
    plan = hashlib.blake2b(repr(sorted(arms.items())).encode()).hexdigest()
    return _ModelSource(folder=folder, entry=entry, own_digest=plan)


def _read_revision(folder: Path, triton: TritonConfig | None) -> _ModelSource:
    shared_folder = folder.parent if triton else None
    declared = triton.declared if triton else {}
    entry = read_manifest(folder, lambda name: find_file(folder, shared_folder, name), declared)
    for field in ("graph", "tokenizer", "weights"):
        name = getattr(entry.manifest, field, None)
        if name and not find_file(folder, shared_folder, name).is_file():
            raise ModelProblem(f"{folder / name}: the file `{field}` names is missing")
    digest = _digest_files(folder)
    if shared_folder is not None:
        digest += _digest_files(shared_folder, without=str.isdecimal)
    return _ModelSource(folder=folder, entry=entry, own_digest=digest, shared_folder=shared_folder)


def find_file(folder: Path, shared_folder: Path | None, name: str) -> Path:
    """Return the path of a file: in `folder` unless only `shared_folder` has it."""
    if (
        shared_folder is not None
        and not (folder / name).exists()
        and (shared_folder / name).exists()
    ):
        return shared_folder / name
    return folder / name


def _resolve(name: str, findings: _Findings, path: tuple[str, ...]) -> Model | None:
    """Add `name` to the models after what it builds on; `None` where that cannot be served."""
    found, models, problems = findings.found, findings.models, findings.problems
    if name in models or name in problems or name not in found:
        return models.get(name)
    if name in path:
        problems[name] = f"it builds on itself: {' -> '.join((*path, name))}"
        return None
    own = found[name]
    manifest = own.entry.manifest
    below = []
    for needed in builds_on(manifest):
        model = _resolve(needed, findings, (*path, name))
        if model is None:
            _note_missing(name, needed, findings)
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
        shared_folder=own.shared_folder,
        upstream=own.upstream,
    )
    return models[name]


def _note_missing(name: str, needed: str, findings: _Findings) -> None:
    """Record that `name` cannot be served because of what it builds on."""
    is_broken = needed in findings.problems
    state = "is broken" if is_broken else "is not in the repository"
    findings.problems.setdefault(name, f"it builds on `{needed}`, which {state}")
    if is_broken and base_name(needed) != name:
        findings.blocked.add(name)
    if needed in findings.waiting:
        findings.waiting.add(name)


def base_name(name: str) -> str:
    """Return the name of the model that `name` is, or is a revision of."""
    return name.partition("@")[0]


def _digest_files(folder: Path, *, without: Callable[[str], bool] = lambda _: False) -> str:
    """Digest the name and content of every file, each with its length before it."""
    digest = hashlib.blake2b()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        first, *_ = parts = name.split("/")
        if not path.is_file() or any(map(_is_hidden, parts)) or without(first):
            continue
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "blake2b").digest()
        except OSError as error:
            raise ModelProblem(f"{path}: it cannot be read: {error.strerror}") from None
        digest.update(len(name.encode()).to_bytes(8, "little") + name.encode() + content)
    return digest.hexdigest()


def _is_hidden(part: str) -> bool:
    """Whether a file or folder is no part of a model: hidden, or Python's byte code."""
    return part.startswith(".") or part == "__pycache__"
