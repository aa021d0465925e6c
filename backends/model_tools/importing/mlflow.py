"""Fetches a version of a registered model from an MLflow server, over its REST API.

The server is `MLFLOW_TRACKING_URI`, with MLflow's variables for credentials. It must proxy
artifacts, as `mlflow server` does by default.
"""

import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

import msgspec

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.importing.artifact import Fetched
from sluicegate.backends.model_tools.importing.wanted_files import wanted_among
from sluicegate.backends.model_tools.syncing.manifest import read_document
from sluicegate.backends.settings import process_environment
from sluicegate.wire.installing import install_command

try:
    import httpx
except ImportError:
    raise StartProblem(
        f"models in MLflow need the package `httpx`; run {install_command('models')}"
    ) from None

_VISIBLE = re.compile(r"[!-~]+")
_FORM = re.compile(r"mlflow://([^/@:]+)(?:/(\d+)|@([\w.-]+))")
_API, _ARTIFACTS = "api/2.0/mlflow/", "api/2.0/mlflow-artifacts/artifacts"
_PROXIED, _LOGGED = "mlflow-artifacts", "models"
# The files without which a folder is no checkpoint. The first folder that has one is the model's.
_MARKS = ("config.json", "modules.json", "gliner_config.json", "adapter_config.json")
# The flavor `transformers` keeps the tokenizer beside the model.
_TOKENIZER = "components/tokenizer/"
_MOST_FILES, _DEEPEST = 2000, 6
_PATIENCE, _LEAST_RATE = 60.0, 256 << 10


class _Version(msgspec.Struct):
    version: str


class _Info(msgspec.Struct):
    artifact_uri: str


class _LoggedModel(msgspec.Struct):
    info: _Info


class _Entry(msgspec.Struct):
    path: str
    is_dir: bool = False
    file_size: int = 0


class _Response(msgspec.Struct):
    """Holds the fields that an import reads of any response."""

    message: str = "no reason"
    model_version: _Version | None = None
    artifact_uri: str = ""
    model: _LoggedModel | None = None
    files: list[_Entry] = []


def fetch_registered(source: str, target: Path) -> Fetched:
    """Fetch the files of a registered model that an import reads into the folder `target`.

    Raises:
        StartProblem: the server or the model cannot be reached, or the model has no checkpoint.
    """
    found = _FORM.fullmatch(source)
    address = process_environment().get("MLFLOW_TRACKING_URI", "")
    if found is None:
        raise StartProblem(
            f"`{source}` is not a version of a model in MLflow; write `mlflow://name/version` or "
            "`mlflow://name@alias`"
        )
    if not _is_address(address):
        raise StartProblem(
            f"`{source}` needs the address of MLflow's server, as in "
            "`MLFLOW_TRACKING_URI=http://127.0.0.1:5000`"
        )
    name, version, alias = found.groups()
    with _client(address) as client:
        try:
            place = _locate(client, name, version, alias)
            files = _fetch(client, place, source, target, address)
        # httpx and `urlsplit` raise the other two for addresses that MLflow sends.
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise StartProblem(
                f"`{source}`: MLflow at {urlsplit(address).hostname} cannot be reached: "
                f"{type(error).__name__}"
            ) from None
    return Fetched(name=name.lower(), files=files)


def _is_address(address: str) -> bool:
    try:
        httpx.URL(address)
        return urlsplit(address).scheme in ("http", "https")
    except (httpx.InvalidURL, ValueError):
        return False


def _client(address: str) -> httpx.Client:
    environment = process_environment()
    token = environment.get("MLFLOW_TRACKING_TOKEN")
    if token and not _VISIBLE.fullmatch(token):
        raise StartProblem(
            "`MLFLOW_TRACKING_TOKEN` has a space, a line break or a character that is not ASCII; "
            "set it to the token alone"
        )
    user = environment.get("MLFLOW_TRACKING_USERNAME")
    return httpx.Client(
        base_url=address.rstrip("/") + "/",
        headers={"Authorization": f"Bearer {token}"} if token else {},
        auth=(user, environment.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None,
        timeout=httpx.Timeout(30.0, connect=10.0),
    )


def _ask(client: httpx.Client, path: str, parameters: Mapping[str, str]) -> _Response:
    with client.stream("GET", path, params=dict(parameters)) as response:
        content = read_document(response.iter_bytes(), f"MLflow's response to `{path}`")
    try:
        document = msgspec.json.decode(content, type=_Response)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if response.is_success:
            raise StartProblem(f"MLflow's response to `{path}` is not valid: {error}") from None
        document = _Response()
    if response.is_success:
        return document
    raise StartProblem(f"MLflow refused `{path}` with {response.status_code}: {document.message}")


def _locate(client: httpx.Client, name: str, version: str | None, alias: str | None) -> str:
    """Return the URI of the artifacts of a version."""
    if version is None:
        named = _ask(client, f"{_API}registered-models/alias", {"name": name, "alias": alias or ""})
        version = named.model_version.version if named.model_version else ""
    which = {"name": name, "version": version}
    uri = _ask(client, f"{_API}model-versions/get-download-uri", which).artifact_uri
    parts = urlsplit(uri)
    if parts.scheme == _LOGGED:  # a logged model of MLflow 3
        path = f"{_API}logged-models/{quote(parts.path.strip('/'), safe='')}"
        logged = _ask(client, path, {}).model
        uri = logged.info.artifact_uri if logged else ""
    return uri


def _fetch(client: httpx.Client, uri: str, source: str, target: Path, address: str) -> list[str]:
    """Fetch the checkpoint at the URI of artifacts; return the names of all of its files."""
    parts = urlsplit(uri)
    # A URI may have no host, and never has a password.
    host = urlsplit(address).netloc.rpartition("@")[2]
    if parts.scheme != _PROXIED or parts.netloc.rpartition("@")[2] not in ("", host):
        raise StartProblem(
            f"`{source}` keeps its files at `{parts.scheme}://`, which MLflow does not proxy; "
            "fetch them with `mlflow artifacts download`, and import the folder"
        )
    place = parts.path.strip("/")
    sizes = _listed(client, place)
    wanted, names = _checkpoint(sizes, source)
    size, free = sum(sizes[path] for path in wanted), shutil.disk_usage(target).free
    if size > free:
        raise StartProblem(f"`{source}` needs {size} bytes, but the disk of {target} has {free}")
    for path, name in wanted.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        _download(client, f"{_ARTIFACTS}/{quote(f'{place}/{path}')}", target / name, sizes[path])
    return names


def _listed(client: httpx.Client, root: str) -> dict[str, int]:
    """Return the sizes of all files below a folder by their paths."""
    sizes: dict[str, int] = {}
    folders = [""]
    # A folder that is listed is appended, and listed in turn.
    for folder in folders:
        place = "/".join(filter(None, (root, folder)))
        for each in _ask(client, _ARTIFACTS, {"path": place}).files:
            path = "/".join(filter(None, (folder, PurePosixPath(each.path).name)))
            if each.is_dir:
                folders.append(path)
            else:
                sizes[path] = each.file_size
        if len(sizes) + len(folders) > _MOST_FILES or folder.count("/") > _DEEPEST:
            raise StartProblem(f"MLflow lists too many files or folders at `{place}`")
    return sizes


def _checkpoint(sizes: Mapping[str, int], source: str) -> tuple[dict[str, str], list[str]]:
    """Return the files to fetch by their paths, with their names, and the names of all files."""
    marked = [path for path in sizes if path.rpartition("/")[2] in _MARKS]
    marked = [path for path in marked if not path.startswith(_TOKENIZER)]
    if not marked:
        raise StartProblem(
            f"`{source}` has no checkpoint: none of its files is {', '.join(_MARKS)}; log the "
            "model with the flavor `transformers` or `sentence_transformers`"
        )
    folder = min(marked, key=lambda path: path.count("/")).rpartition("/")[0]
    start = f"{folder}/" if folder else ""
    beside = {path.removeprefix(_TOKENIZER): path for path in sizes if path.startswith(_TOKENIZER)}
    own = {path.removeprefix(start): path for path in sizes if path.startswith(start)}
    names = beside | own
    return {names[name]: name for name in wanted_among(names)}, sorted(own)


def _download(client: httpx.Client, path: str, target: Path, size: int) -> None:
    deadline = time.monotonic() + _PATIENCE + size / _LEAST_RATE
    got = 0
    with client.stream("GET", path) as response, target.open("wb") as file:
        if not response.is_success:
            raise StartProblem(f"MLflow refused `{target.name}` with {response.status_code}")
        for chunk in response.iter_bytes():
            got += len(chunk)
            file.write(chunk)
            if got > size or time.monotonic() > deadline:
                why = "is larger than listed" if got > size else "arrives too slowly"
                raise StartProblem(f"MLflow's file `{target.name}` {why}: {got} of {size} bytes")
    if got != size:
        raise StartProblem(f"MLflow's file `{target.name}` is cut short: {got} of {size} bytes")
