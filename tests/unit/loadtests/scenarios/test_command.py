"""Tests that the command of load tests refuses what cannot be, before it starts anything."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtests.scenarios import k6
from loadtests.scenarios.command import scenarios_command
from testing.ports import free_port


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("sk-one\nsk-two\n")
    return path


@pytest.fixture(autouse=True)
def k6_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k6, "program", lambda: "/nowhere/k6")


def _said(*arguments: str) -> str:
    result = CliRunner().invoke(scenarios_command, list(arguments))
    assert result.exit_code != 0
    assert "Traceback" not in result.output
    return result.output


def test_faults_need_a_system_of_this_machine(key_file: Path) -> None:
    said = _said("chaos", "--url", "http://a.example", "--key-file", str(key_file))

    assert "only on this machine" in said


def test_an_address_needs_keys() -> None:
    assert "belong together" in _said("steady", "--url", "http://a.example")


def test_keys_need_an_address(key_file: Path) -> None:
    assert "belong together" in _said("steady", "--key-file", str(key_file))


@pytest.mark.parametrize("url", ["gateway:8080", "ftp://a.example", "http://me:secret@a.example"])
def test_an_address_is_one_of_http(url: str, key_file: Path) -> None:
    assert "is like https://" in _said("steady", "--url", url, "--key-file", str(key_file))


def test_an_address_where_nobody_answers_is_named(key_file: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    assert f"{url} does not answer" in _said("steady", "--url", url, "--key-file", str(key_file))


def test_a_file_without_keys_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")

    said = _said("steady", "--url", "http://a.example", "--key-file", str(tmp_path / "empty"))

    assert "holds no key" in said


def test_without_k6_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k6, "program", lambda: None)

    assert "make install-load" in _said("steady")
