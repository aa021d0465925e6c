"""Repositories come from registries: as artifacts of files, and in container images."""

import base64
import functools
import gzip
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from sluicegate.backends.model_tools.syncing.manifest import (
    INDEX,
    MANIFEST,
    Descriptor,
    Manifest,
    SyncProblem,
    read_manifest,
    sha256,
)
from sluicegate.backends.model_tools.syncing.registry import RegistryStore
from sluicegate.backends.repository.last_good import write_last_good
from tests.support.model_sync import CONTENT, files, push, run, write
from tests.support.registry import PASSWORD, USER, Registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as running:
        yield running


def test_a_registry_is_asked_with_the_credentials_of_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Registry(wants_token=True) as registry:
        target = f"oci://{registry.host}/team/models:live"
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        refused = run("push", write(tmp_path / "made"), target)
        pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        login = {"auths": {registry.host: {"auth": pair}}}
        (tmp_path / "config.json").write_text(json.dumps(login))

        push(tmp_path / "made", target)
        result = run("sync", target, tmp_path / "models")

    assert "needs credentials" in refused.output
    assert result.exit_code == 0, result.output
    assert files(tmp_path / "models") == CONTENT


@pytest.fixture
def with_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Yield a registry that wants a token, and whose login is known."""
    with Registry(wants_token=True) as registry:
        pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        login = {"auths": {registry.host: {"auth": pair}}}
        (tmp_path / "config.json").write_text(json.dumps(login))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        yield registry


@pytest.mark.parametrize("elsewhere_wants_token", [False, True])
def test_credentials_stay_with_their_registry(
    tmp_path: Path, with_login: Registry, *, elsewhere_wants_token: bool
) -> None:
    target = f"oci://{with_login.host}/team/models:live"
    push(write(tmp_path / "made"), target)
    write(tmp_path / "made", {"minilm/2/model.onnx": b"newer"})

    with Registry(wants_token=elsewhere_wants_token) as elsewhere:
        elsewhere.blobs |= with_login.blobs
        with_login.moved_to = f"http://localhost:{elsewhere.server_address[1]}"
        synchronised = run("sync", target, tmp_path / "models")
        pushed = run("push", tmp_path / "made", target)

    assert set(elsewhere.authorizations) == {""}
    assert any("PUT" in line for line in elsewhere.requests)
    assert {synchronised.exit_code, pushed.exit_code} == {2 if elsewhere_wants_token else 0}


def test_a_password_goes_to_no_other_host_that_a_challenge_names(
    tmp_path: Path, with_login: Registry
) -> None:
    with Registry() as elsewhere:
        with_login.realm = f"http://localhost:{elsewhere.server_address[1]}/token"
        result = run("push", write(tmp_path / "made"), f"oci://{with_login.host}/models")

    assert set(elsewhere.authorizations) == {""}
    assert "needs credentials" in result.output


def test_what_came_over_https_does_not_leave_over_http(
    tmp_path: Path, with_login: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.url.path == "/token":
            return httpx.Response(200, json={"token": "a-token"})
        if "authorization" not in request.headers:
            challenge = {"WWW-Authenticate": 'Bearer realm="http://elsewhere/token"'}
            return httpx.Response(401, headers=challenge)
        status = 202 if request.method == "POST" else 307
        return httpx.Response(status, headers={"Location": "http://elsewhere/place"})

    client = functools.partial(httpx.Client, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(httpx, "Client", client)
    login = (tmp_path / "config.json").read_text().replace(with_login.host, "registry.example")
    (tmp_path / "config.json").write_text(login)
    store = RegistryStore("registry.example", "models")
    (tmp_path / "file").write_bytes(b"x")

    with pytest.raises(SyncProblem, match="from HTTPS to http://elsewhere"):
        store.put_blob(sha256(b"x"), tmp_path / "file")
    with pytest.raises(SyncProblem, match="from HTTPS to http://elsewhere"):
        list(store.blob(sha256(b"x")))
    store.close()

    over_http = [each for each in asked if each.url.scheme == "http"]
    assert [each.url.path for each in over_http] == ["/token"]
    assert not any("authorization" in each.headers for each in over_http)


@pytest.mark.parametrize("realm", ["", "nowhere", "http://", "http://[", "http://a:b/"])
def test_a_challenge_that_cannot_be_answered_is_explained(
    tmp_path: Path, with_login: Registry, realm: str
) -> None:
    with_login.realm = realm

    result = run("push", write(tmp_path / "made"), f"oci://{with_login.host}/models")

    assert result.exit_code == 2, result.exception
    assert "the registry cannot be reached" in result.output


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ('{"token": "caf\u00e9"}', "needs credentials"),
        ("[" * 100_000, "needs credentials"),
        (" " * (4 << 20) + "{}", "the token is larger than 4194304 bytes"),
    ],
    ids=["letters", "nested", "large"],
)
def test_a_token_that_cannot_be_used_is_explained(
    tmp_path: Path, with_login: Registry, token: str, says: str
) -> None:
    with_login.token = token

    result = run("push", write(tmp_path / "made"), f"oci://{with_login.host}/models")

    assert result.exit_code == 2, result.exception
    assert says in result.output


def test_a_manifest_of_any_size_is_not_read(tmp_path: Path, registry: Registry) -> None:
    registry.manifests["live"] = bytes(5 << 20)

    result = run("sync", f"oci://{registry.host}/models:live", tmp_path / "models")

    assert result.exit_code == 2
    assert "the manifest `live` is larger than 4194304 bytes" in result.output


def layer(content: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for path, each in content.items():
            member = tarfile.TarInfo(path)
            member.size = len(each)
            archive.addfile(member, io.BytesIO(each))
        link = tarfile.TarInfo("passwords")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return gzip.compress(made.getvalue(), mtime=0)


def test_the_models_of_a_container_image_are_those_of_its_layers(
    tmp_path: Path, registry: Registry
) -> None:
    lower = layer({f"models/{path}": each for path, each in CONTENT.items()} | {"etc/x": b"-"})
    upper = layer({"models/sentiment/.wh.1": b"", "models/sentiment/serving.yaml": b"{}"})
    layers = []
    for each in (lower, upper):
        registry.blobs[sha256(each)] = each
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        layers.append(Descriptor(media_type=kind, digest=sha256(each), size=len(each)))
    image = Manifest(media_type=MANIFEST, layers=layers).encode()
    registry.manifests[sha256(image)] = image
    platform = {
        "os": "linux",
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
    }
    other = Descriptor(digest=sha256(b"other"), size=1, platform={"os": "plan9"})
    own = Descriptor(digest=sha256(image), size=len(image), platform=platform)
    registry.manifests["live"] = Manifest(media_type=INDEX, manifests=[other, own]).encode()
    source = f"oci://{registry.host}/team/image:live"

    result = run("sync", source, tmp_path / "models")

    wanted = {path: each for path, each in CONTENT.items() if "sentiment/1" not in path}
    assert result.exit_code == 0, result.output
    assert files(tmp_path / "models") == wanted | {"sentiment/serving.yaml": b"{}"}
    registry.blobs.clear()
    assert run("sync", source, tmp_path / "models").exit_code == 0


def test_a_revision_that_left_an_image_goes_once_another_is_served(
    tmp_path: Path, registry: Registry
) -> None:
    newer = {path: each for path, each in CONTENT.items() if "sentiment/1" not in path}
    for content in (CONTENT, newer):
        made = layer({f"models/{path}": each for path, each in content.items()})
        registry.blobs[sha256(made)] = made
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        blob = Descriptor(media_type=kind, digest=sha256(made), size=len(made))
        registry.manifests["live"] = Manifest(media_type=MANIFEST, layers=[blob]).encode()
        run("sync", f"oci://{registry.host}/image:live", tmp_path / "models")
    kept = files(tmp_path / "models")
    write_last_good(tmp_path / "models/sentiment", {"2": 1})

    result = run("sync", f"oci://{registry.host}/image:live", tmp_path / "models")

    assert kept == CONTENT
    assert "sentiment/1: removed" in result.output
    assert files(tmp_path / "models") == newer


def test_manifests_are_those_of_an_artifact(tmp_path: Path, registry: Registry) -> None:
    push(write(tmp_path / "made"), f"oci://{registry.host}/team/models:live")

    document = msgspec.json.decode(registry.manifests["live"])
    manifest = read_manifest(registry.manifests["live"], "here")

    assert document["schemaVersion"] == 2
    assert document["artifactType"] == "application/vnd.sluicegate.models.v1"
    assert {each.title: each.size for each in manifest.layers} == {
        path: len(content) for path, content in CONTENT.items()
    }


@pytest.mark.parametrize(
    "path", ["../1/model.onnx", "/etc/1/x", "a/../../b", "a/.ssh/x", "a", "A/1/x", "a/1/\\x"]
)
def test_a_path_that_leads_elsewhere_is_refused(
    tmp_path: Path, registry: Registry, path: str
) -> None:
    registry.blobs[sha256(b"x")] = b"x"
    title = {"org.opencontainers.image.title": path}
    layer = Descriptor(media_type="text/plain", digest=sha256(b"x"), size=1, annotations=title)
    registry.manifests["live"] = Manifest(media_type=MANIFEST, layers=[layer]).encode()

    result = run("sync", f"oci://{registry.host}/models:live", tmp_path / "models")

    assert result.exit_code == 2
    assert "not a path in a model repository" in result.output
    assert files(tmp_path) == {}


def test_a_fetch_that_was_cut_goes_on_where_it_ended(tmp_path: Path, registry: Registry) -> None:
    target = f"oci://{registry.host}/team/models"
    push(write(tmp_path / "made"), target)
    registry.stop_after = 150_000

    first = run("sync", target, tmp_path / "models")
    second = run("sync", target, tmp_path / "models")

    assert first.exit_code == 2
    assert "the registry cannot be reached" in first.output
    assert second.exit_code == 0
    assert files(tmp_path / "models") == CONTENT
    assert any(" 206 " in line for line in registry.requests)
