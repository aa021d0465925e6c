"""`models import` fetches checkpoints from registries and MLflow; it never fetches a pickle."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.backends.model_tools.syncing.manifest import write_manifest
from sluicegate.backends.repository.sync_record import FileDigest
from tests.parity.checkpoints import Checkpoint, write_checkpoint
from tests.parity.library_fixtures import unpack
from tests.support.imports import run_import
from tests.support.mlflow_server import MlflowServer, running_mlflow
from tests.support.model_sync import push, write as write_repository
from tests.support.registry import Registry


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return folder


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as running:
        yield running


def put_artifact(registry: Registry, folder: Path) -> None:
    """Put the files of a folder into a registry, as `oras push` does."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    digests = {name: f"sha256:{hashlib.sha256(c).hexdigest()}" for name, c in contents.items()}
    registry.blobs |= {digests[name]: content for name, content in contents.items()}
    listed = {n: FileDigest(digest=digests[n], size=len(c)) for n, c in contents.items()}
    registry.manifests["v1"] = write_manifest(listed)


def test_an_artifact_of_a_registry_is_imported_without_its_pickle(
    source: Path, registry: Registry, tmp_path: Path
) -> None:
    put_artifact(registry, source)
    pickle = hashlib.sha256(b"a pickle").hexdigest()

    result = run_import(f"oci://{registry.host}/team/nli:v1", tmp_path / "m")

    assert result.exit_code == 0, result.output
    assert (tmp_path / "m" / "nli" / "1" / "model.onnx").is_file()
    assert "pytorch_model.bin: a second copy of the weights" in result.output
    assert not any(pickle in line for line in registry.requests)


def test_an_artifact_may_have_its_encoder_in_a_folder(registry: Registry, tmp_path: Path) -> None:
    put_artifact(registry, unpack("gliner2-00", tmp_path / "source"))

    result = run_import(f"oci://{registry.host}/team/any:v1", tmp_path / "m")

    assert result.exit_code == 0, result.output


def test_an_error_names_the_source_and_no_temporary_folder(
    source: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "config.json").unlink()
    (source / "model.onnx\n").write_bytes(b"a name that cannot be printed is not fetched")
    put_artifact(registry, source)
    place = f"oci://{registry.host}/team/nli:v1"

    incomplete = run_import(place, tmp_path / "m")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    nowhere = run_import(place, tmp_path / "m")

    assert f"`{place}` has no `config.json`" in incomplete.output
    assert f"`{place}` cannot be fetched: No such file or directory" in nowhere.output
    assert [result.exit_code for result in (incomplete, nowhere)] == [2, 2]


def test_an_altered_file_of_an_artifact_is_refused(
    source: Path, registry: Registry, tmp_path: Path
) -> None:
    put_artifact(registry, source)
    digest = f"sha256:{hashlib.sha256((source / 'config.json').read_bytes()).hexdigest()}"
    registry.blobs[digest] = registry.blobs[digest][:-1] + b" "

    result = run_import(f"oci://{registry.host}/team/nli:v1", tmp_path / "m")

    assert result.exit_code == 2
    assert "`config.json` was altered" in result.output
    assert len(result.output.splitlines()) == 1


def test_a_repository_in_a_registry_is_left_to_sync(registry: Registry, tmp_path: Path) -> None:
    place = f"oci://{registry.host}/team/models:live"
    push(write_repository(tmp_path / "made"), place)

    result = run_import(place, tmp_path / "m")

    assert result.exit_code == 2
    assert f"`sluicegate models sync {place} DIR`" in result.output


@pytest.fixture
def mlflow(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MlflowServer]:
    """Serve the checkpoint as the flavor `transformers` keeps it."""
    artifacts = tmp_path / "artifacts"
    shutil.copytree(source, artifacts / "model")
    tokenizer = artifacts / "components" / "tokenizer"
    tokenizer.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (artifacts / "model" / name).rename(tokenizer / name)
    (artifacts / "MLmodel").write_text("flavors: {transformers: {}}")
    with running_mlflow(artifacts) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
        yield server


@pytest.mark.parametrize("place", ["classifier/3", "classifier@champion"])
@pytest.mark.parametrize("uri", ["", "models:/m-7"])
def test_a_version_of_mlflow_is_imported_with_its_tokenizer(
    mlflow: MlflowServer, tmp_path: Path, place: str, uri: str
) -> None:
    mlflow.uri = uri or mlflow.uri

    result = run_import(f"mlflow://{place}", tmp_path / "m", "--dry-run")

    assert result.exit_code == 0, result.output
    assert "contradiction, neutral, entailment" in result.output
    assert not any(path.endswith(".bin") for path in mlflow.asked)


def test_mlflow_gets_its_own_credentials(
    mlflow: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "a-token")

    run_import("mlflow://classifier/3", tmp_path / "m", "--dry-run")

    assert mlflow.authorizations == {"Bearer a-token"}


def test_a_file_that_mlflow_cuts_short_is_refused(mlflow: MlflowServer, tmp_path: Path) -> None:
    mlflow.listed_more = 1

    result = run_import("mlflow://classifier/3", tmp_path / "m")

    assert result.exit_code == 2
    assert "is cut short" in result.output


@pytest.mark.parametrize("token", ["a-secret\n", "a-s\u00e9cret", "a secret"])
def test_a_token_that_no_header_can_carry_is_not_printed(
    mlflow: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", token)

    result = run_import("mlflow://classifier/3", tmp_path / "m")

    assert result.exit_code == 2
    assert "`MLFLOW_TRACKING_TOKEN` has a space, a line break" in result.output
    assert token.strip() not in result.output


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        (b'{"files": ["x"]}', "is not valid"),
        (b'{"files": [{"path": "config.json", "file_size": "x"}]}', "is not valid"),
        (b"[]", "is not valid"),
        (b"<html>", "is not valid"),
        (b" " * (5 << 20), "is larger than"),
        (b'{"files": [{"path": "again", "is_dir": true}]}', "too many files or folders"),
        (b'{"files": [%s]}' % b",".join([b'{"path":"%d"}' % n for n in range(3000)]), "too many"),
    ],
)
def test_a_list_of_artifacts_is_bounded_and_checked(
    mlflow: MlflowServer, tmp_path: Path, listing: bytes, message: str
) -> None:
    mlflow.listing = listing

    result = run_import("mlflow://classifier/3", tmp_path / "m")

    assert result.exit_code == 2
    assert message in result.output


def test_the_address_of_mlflow_may_have_a_password(
    mlflow: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = mlflow.address.removeprefix("http://")
    mlflow.uri = mlflow.uri.replace("mlflow-artifacts:", f"mlflow-artifacts://{host}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret@{host}")

    result = run_import("mlflow://classifier/3", tmp_path / "m", "--dry-run")

    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("place", "uri", "message"),
    [
        ("mlflow://classifier/4", "", "with 404: not found"),
        ("mlflow://classifier", "", "write `mlflow://name/version`"),
        ("mlflow://classifier/3", "s3://bucket/m", "`mlflow artifacts download`"),
        ("mlflow://classifier/3", "mlflow-artifacts://elsewhere/m", "does not proxy"),
        ("mlflow://classifier/3", "mlflow-artifacts://[m", "cannot be reached: ValueError"),
        ("gs://bucket/m", "", "`gs://` is not a place of checkpoints"),
        ("hf://model", "", "write `hf://owner/name@revision`"),
    ],
)
def test_a_place_without_a_checkpoint_is_refused_in_one_line(
    mlflow: MlflowServer, tmp_path: Path, place: str, uri: str, message: str
) -> None:
    mlflow.uri = uri or mlflow.uri

    result = run_import(place, tmp_path / "m")

    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_artifacts_without_a_checkpoint_are_refused(mlflow: MlflowServer, tmp_path: Path) -> None:
    shutil.rmtree(mlflow.artifacts / "model")

    result = run_import("mlflow://classifier/3", tmp_path / "m")

    assert "has no checkpoint" in result.output


def test_mlflow_needs_an_address_and_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    without = run_import("mlflow://classifier/3", tmp_path / "m")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    closed = run_import("mlflow://classifier/3", tmp_path / "m")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:abc")
    wrong = run_import("mlflow://classifier/3", tmp_path / "m")

    assert "MLFLOW_TRACKING_URI=" in without.output
    assert "cannot be reached" in closed.output
    assert "needs the address of MLflow's server" in wrong.output
    assert "secret" not in closed.output + wrong.output


def test_the_report_is_one_document_as_json(source: Path, tmp_path: Path) -> None:
    (source / "README.md").write_text("---\nwidget: [{text: A witty film.}]\n---\n")

    result = run_import(source, tmp_path / "m", "--name", "nli", "--json")

    report = json.loads(result.stdout)
    labels = next(field for field in report["fields"] if field["name"] == "labels")
    (example,) = report["examples"]
    assert labels["source"] == "`id2label` in config.json"
    assert example["request"] == {"model": "nli", "input": ["A witty film."]}
    assert len(example["results"][0]["labels"]) == 3
    assert "pip install sentence-transformers" in report["comparison"]["reason"]
    assert report["written"] == [str(tmp_path / "m" / "nli" / "1")]
    assert report["price"] is None
