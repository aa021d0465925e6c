"""`models compare` holds what is served against the reference libraries on the checkpoint.

They are in the environment of `make parity`; where that is not, only the way there is tested.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluicegate.backends.cli import main
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.comparing.asking import reference_results
from sluicegate.wire.protocol import Task
from tests.parity.checkpoints import Checkpoint, Purpose, write_checkpoint
from tests.parity.served import write_models
from tests.parity.texts import read_texts
from tests.support.reference_library import install_library

ROOT = Path(__file__).parents[2]
LIBRARIES = ROOT / ".venv-parity/lib" / f"python3.{sys.version_info.minor}" / "site-packages"
PURPOSES: tuple[Purpose, ...] = ("many", "tokens", "embed", "cross")
BERT = Checkpoint(family="bert", purpose="many")


def arguments(folder: Path, checkpoint: Checkpoint = BERT) -> list[str]:
    folder.mkdir(exist_ok=True)
    texts = folder / "texts.txt"
    texts.write_text("\n".join(read_texts()[:40]), encoding="utf-8")
    models = write_models(folder / "models", [checkpoint])
    source = write_checkpoint(checkpoint, folder / "source")
    given = ("--models", models, "--threads", 1, "--folder", source, "--texts", texts)
    return ["models", "compare", checkpoint.name, *map(str, given)]


def compare(*given: str) -> Result:
    return CliRunner().invoke(main, list(given))


def with_libraries(given: list[list[str]]) -> list[tuple[int, str]]:
    """Return exit code and output of commands, run where the libraries are imported once."""
    ran = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(given)],
        env={"PYTHONPATH": f"{LIBRARIES}:{ROOT}", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [(code, output) for code, output in json.loads(ran.stdout.splitlines()[-1])]


_RUN = """
import json, sys
from click.testing import CliRunner
from sluicegate.backends.cli import main
ran = [CliRunner().invoke(main, given) for given in json.loads(sys.argv[1])]
print(json.dumps([[one.exit_code, one.stdout] for one in ran]))
"""


def test_without_the_libraries_one_line_says_what_to_install(tmp_path: Path) -> None:
    result = compare(*arguments(tmp_path))

    assert result.exit_code == 2
    assert "`transformers`, which is not installed" in result.output
    assert "pip install sentence-transformers" in result.output
    assert len(result.output.splitlines()) == 1


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    given = arguments(tmp_path)
    given[given.index("--folder") + 1] = str(tmp_path / "gone")

    result = compare(*given)

    assert result.exit_code == 2
    assert f"`--folder {tmp_path / 'gone'}`: there is no such folder" in result.output


@pytest.mark.skipif(not LIBRARIES.is_dir(), reason="the environment of `make parity` is not here")
def test_imports_answer_as_the_reference_does_and_swapped_labels_do_not(tmp_path: Path) -> None:
    given = [
        arguments(tmp_path / purpose, Checkpoint(family="bert", purpose=purpose))
        for purpose in PURPOSES
    ]
    given.append(arguments(tmp_path / "swapped"))
    path = tmp_path / "swapped" / "source" / "config.json"
    config = json.loads(path.read_bytes())
    names = list(config["id2label"].values())
    config["id2label"] = dict(zip(config["id2label"], names[::-1], strict=True))
    path.write_text(json.dumps(config))

    *equal, (code, output) = with_libraries(given)

    assert [name for name, (code, _) in zip(PURPOSES, equal, strict=True) if code] == []
    assert all("different results      0" in output for _, output in equal)
    assert code == 1
    assert "of texts" in output


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('an odd head')", "the reference library failed: an odd head"),
        ("os._exit(3)", "the reference library ended early: exit code 3"),
        ("signal.pause()", "the reference library took longer than 3 s"),
    ],
)
def test_a_library_that_fails_or_hangs_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    install_library(tmp_path / "packages", body, monkeypatch)

    with pytest.raises(StartProblem, match=message):
        reference_results(tmp_path, Task.CLASSIFY, ["a"], deadline=3.0)


def test_another_python_may_have_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = "[{'label': 'good', 'score': 0.75}, {'label': 'bad', 'score': 0.25}]"
    install_library(tmp_path / "packages", f"return lambda text, **_: {labels}", monkeypatch)
    python = tmp_path / "python"
    python.symlink_to(sys.executable)

    found = reference_results(tmp_path, Task.CLASSIFY, ["a"], python=python)

    assert found.scores == [{"good": 0.75, "bad": 0.25}]


def test_what_a_library_prints_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "print(0); import atexit; atexit.register(print, 1); return lambda text, **_: []"
    install_library(tmp_path / "packages", body, monkeypatch)

    assert reference_results(tmp_path, Task.CLASSIFY, ["a"]).scores == [{}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("exit 0", "must name a Python interpreter"),
        ("cat > /dev/null; echo 3", "must name a Python interpreter"),
        ("cat > /dev/null; sleep 600", "took longer than 3 s"),
    ],
)
def test_a_script_that_gives_no_results_is_told(tmp_path: Path, body: str, message: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)

    with pytest.raises(StartProblem, match=message):
        reference_results(tmp_path, Task.CLASSIFY, ["a"], python=python, deadline=3.0)


def test_a_library_does_not_see_our_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEGATE_BACKEND_TOKEN", "a-secret")
    body = "return lambda text, **_: [{'label': str(dict(os.environ)), 'score': 1}]"
    install_library(tmp_path / "packages", body, monkeypatch)

    found = reference_results(tmp_path, Task.CLASSIFY, ["a"])

    assert "a-secret" not in str(found.scores)
