"""Keys are imported from a file, and a failure says which of them are created."""

from pathlib import Path

import msgspec
import pytest

from tests.support.commands import CREATED, listener, run


def test_keys_are_imported_a_line_each(tmp_path: Path) -> None:
    lines = [b'{"tenant":"acme","name":"a"}', b'{"tenant":"beta"}']
    path = tmp_path / "keys.jsonl"
    path.write_bytes(b"\n".join(lines))
    answer = b'{"keys":[{"id":"key_1","key":"sk-1"},{"id":"key_2","key":"sk-2"}]}'

    with listener(CREATED + answer) as (there, asked):
        result = run("keys", "import", "--new-tenants", str(path), *there)

    assert result.exit_code == 0, result.output
    assert [msgspec.json.decode(line)["key"] for line in result.output.splitlines()] == [
        "sk-1",
        "sk-2",
    ]
    assert asked == ["/admin/keys/bulk"]


def test_a_line_that_is_no_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_bytes(b'{"tenant":"acme"}\nacme\n')

    with listener() as (there, asked):
        result = run("keys", "import", str(path), *there)

    assert result.exit_code == 1
    assert "line 2 " in result.output
    assert "No key is created" in result.output
    assert not asked


def test_a_line_that_is_not_utf_8_is_named_and_the_lines_before_are_said_to_be_created(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_bytes(b'{"tenant":"acme"}\n' * 1000 + b'{"tenant":"\xff"}\n')

    with listener(CREATED + b'{"keys":[]}') as (there, asked):
        result = run("keys", "import", str(path), *there)

    assert (result.exit_code, len(asked)) == (1, 1)
    assert "line 1001 " in result.output
    assert "The keys of the first 1000 lines are created" in result.output


def test_blank_lines_are_no_keys_and_count_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_bytes(b'\n{"tenant":"acme"}\n \r\n{"tenant":"beta"}\n\n')
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(path.read_bytes() + b"acme\n")

    with listener(CREATED + b'{"keys":[{"id":"key_1"}]}') as (there, _):
        results = [run("keys", "import", str(each), *there) for each in (path, broken)]

    assert [result.exit_code for result in results] == [0, 1]
    assert "line 6 " in results[1].output


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="none"),
        pytest.param(b"503 Unavailable\r\n\r\n" + b'{"detail":"no ledger"}', id="503"),
        pytest.param(b"200 OK\r\nContent-Length: 99\r\n\r\n{", id="half"),
    ],
)
def test_keys_whose_creation_nobody_confirmed_are_not_said_to_be_created_or_not(
    tmp_path: Path, answer: bytes
) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_bytes(b'{"tenant":"acme"}\n' * 1001)

    with listener(CREATED + b'{"keys":[]}', answer) as (there, _):
        result = run("keys", "import", str(path), *there)

    assert result.exit_code == 4
    assert "the lines 1001 to 1001" in result.output
    assert "sluicegate keys list" in result.output
    assert "No key is created" not in result.output
