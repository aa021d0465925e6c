"""`models compare` holds what is served against the reference libraries on the checkpoint.

They are in the environment of `make parity`; where that is not, only the way there is tested.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from backends.cli import main
from tests.parity.checkpoints import Checkpoint, Purpose, write_checkpoint
from tests.parity.served import write_models
from tests.parity.texts import read_texts

ROOT = Path(__file__).parents[2]
LIBRARIES = ROOT / ".venv-parity/lib" / f"python3.{sys.version_info.minor}" / "site-packages"
BERT = Checkpoint(family="bert", purpose="many")


def arguments(folder: Path, checkpoint: Checkpoint = BERT) -> list[str]:
    texts = folder / "texts.txt"
    texts.write_text("\n".join(read_texts()[:40]), encoding="utf-8")
    models = write_models(folder / "models", [checkpoint])
    source = write_checkpoint(checkpoint, folder / "source")
    given = ("--models", models, "--threads", 1, "--folder", source, "--texts", texts)
    return ["models", "compare", checkpoint.name, *map(str, given)]


def compare(*given: str) -> Result:
    return CliRunner().invoke(main, list(given))


def with_libraries(given: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "backends", *given],
        env={"PYTHONPATH": f"{LIBRARIES}:{ROOT}", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_the_libraries_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)

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
@pytest.mark.parametrize("purpose", ["many", "tokens", "embed", "cross"])
def test_an_import_answers_as_the_reference_does(tmp_path: Path, purpose: Purpose) -> None:
    ran = with_libraries(arguments(tmp_path, Checkpoint(family="bert", purpose=purpose)))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "other answers          0" in ran.stdout


@pytest.mark.skipif(not LIBRARIES.is_dir(), reason="the environment of `make parity` is not here")
def test_labels_in_another_order_are_another_answer(tmp_path: Path) -> None:
    given = arguments(tmp_path)
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_bytes())
    names = list(config["id2label"].values())
    config["id2label"] = dict(zip(config["id2label"], names[::-1], strict=True))
    path.write_text(json.dumps(config))

    ran = with_libraries(given)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "of texts" in ran.stdout
