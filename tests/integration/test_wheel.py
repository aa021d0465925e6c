"""The wheel holds all that its commands need, in an environment that does not see the clone."""

import subprocess
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import hatchling.build
import pytest

ROOT = Path(__file__).parents[2]
# Runs the command as the installed script does.
_SCRIPT = (
    "import sys; from importlib.metadata import entry_points;"
    " (script,) = entry_points(group='console_scripts', name='sluicegate');"
    " sys.argv[0] = 'sluicegate'; sys.exit(script.load()())"
)
_WHERE = (
    "import sluicegate, sluicegate.gateway, sluicegate.backends, sluicegate.wire;"
    " print(sluicegate.__file__, sluicegate.gateway.__file__, sluicegate.backends.__file__,"
    " sluicegate.wire.__file__, sluicegate.__version__)"
)
_FOREIGN = ("gateway", "backends", "bulk", "wire")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the build backend in this process."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return folder / hatchling.build.build_wheel(str(folder))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, and foreign packages named as our folders.

    Packages that the wheel depends on come from this environment. Its link to the clone is not
    followed from there.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for name in _FOREIGN:
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text("WHOSE = 'a stranger'\n")
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "python"


def run(python: Path, folder: Path, program: str, *arguments: str) -> str:
    done = subprocess.run(
        [python, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_packages_with_their_files_and_no_other(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"sluicegate"}
    assert {
        "sluicegate/py.typed",
        "sluicegate/gateway/api/static/scalar.js.gz",
        "sluicegate/gateway/cli/starter_config/gateway.yaml",
        "sluicegate/backends/model_tools/demo/models/minilm/model.yaml",
    } <= names


def test_the_commands_of_the_wheel_write_and_check_a_configuration(
    python: Path, tmp_path: Path
) -> None:
    found = run(python, tmp_path, _WHERE).split()
    wrote = run(python, tmp_path, _SCRIPT, "init")
    checked = run(python, tmp_path, _SCRIPT, "config", "check")

    assert all(path.startswith(str(python.parents[1])) for path in found[:4])
    assert found[4] == version("sluicegate")
    assert "wrote config/gateway.yaml" in wrote
    assert "`config` is valid" in checked


def test_foreign_packages_with_the_names_of_our_folders_stay_as_they_are(
    python: Path, tmp_path: Path
) -> None:
    names = ", ".join(_FOREIGN)
    program = f"import sluicegate.gateway.cli.root, {names}; print(*(n.WHOSE for n in ({names})))"

    assert run(python, tmp_path, program) == " ".join(["a stranger"] * len(_FOREIGN)) + "\n"


def test_an_algorithm_may_import_a_foreign_package_named_backends(
    python: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(
        "import backends\nfrom sluicegate.algorithms import Ask\n"
        "from backends.algorithms.authoring import Refused\n"
        "async def run(item: str, ask: Ask) -> str:\n    return backends.WHOSE\n"
    )
    program = (
        "import asyncio; from pathlib import Path;"
        " from sluicegate.backends.algorithms.user_code import read_user_code;"
        " print(asyncio.run(read_user_code('own.py', Path()).run('x', None)))"
    )

    assert run(python, tmp_path, program) == "a stranger\n"
