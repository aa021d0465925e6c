"""What a newcomer runs first: `init`, `completion`, `--help`, and `up` in an empty folder."""

import shlex
import subprocess
import sys
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from sluicegate.backends.cli import main as backend_main
from sluicegate.gateway.cli.examples import all_commands
from sluicegate.gateway.cli.root import main
from sluicegate.gateway.cli.starting import STARTER_CONFIG
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.load import load_folder

NAMES = ["gateway.yaml", "models.yaml", "prices.yaml"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_init_writes_a_commented_configuration_that_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = run("init")

    assert result.exit_code == 0
    assert sorted(path.name for path in Path("config").iterdir()) == NAMES
    assert [f"wrote config/{name}" in result.output for name in NAMES] == [True] * 3
    assert run("config", "check").exit_code == 0
    assert all(path.read_text().startswith("# ") for path in Path("config").iterdir())


def test_init_ends_with_commands_that_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "bin" / "sluicegate"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", [str(program), "init"])

    _, _, after = run("init", "my config").output.partition("Next:\n\n")
    commands = [shlex.split(line) for line in after.splitlines()]

    assert [words[0] for words in commands] == [str(program)] * len(commands)
    assert commands[0][1:] == ["config", "check", "my config"]
    assert run(*commands[0][1:]).exit_code == 0
    assert commands[-1][1:4] == ["up", "--config", "my config"]


def test_the_configuration_that_init_writes_names_no_model_and_keeps_the_defaults() -> None:
    assert load_folder(STARTER_CONFIG) == Document(prices=())


def test_the_demonstrations_configuration_keeps_the_defaults_but_of_models() -> None:
    document = load_folder(Path(__file__).parents[4] / "config")

    defaults = msgspec.structs.replace(document, models={}, guards={}, routers={}, prices=())
    assert defaults == Document(prices=())


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("models: {}\n")

    result = run("init", tmp_path)

    assert result.exit_code == 1
    assert f"`{tmp_path}/mine.yaml` exists" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_init_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "models.yaml").symlink_to(tmp_path / "missing" / "models.yaml")

    below = run("init", tmp_path / "file" / "config")
    dangling = run("init", folder)

    assert (below.exit_code, dangling.exit_code) == (1, 1)
    assert "cannot be written: Not a directory" in below.stderr
    assert [path.name for path in folder.iterdir()] == ["models.yaml"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_completes(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell], prog_name="sluicegate")

    assert result.exit_code == 0
    assert f"_SLUICEGATE_COMPLETE={shell}_complete" in result.output


def with_help(group: click.Group) -> dict[str, click.Command]:
    """Return the commands that show help of their own; backends show that of the others."""
    return {name: one for name, one in all_commands(group) if one.add_help_option}


OWN, OF_BACKENDS = with_help(main), with_help(backend_main)


@pytest.mark.parametrize("name", OWN)
def test_every_command_has_an_example_in_its_help(name: str) -> None:
    example = example_of(OWN[name])

    assert f"Example:\n    {example}\n" in run(*name.split(), "--help").output
    assert_right(example, name, OWN[name])


@pytest.mark.parametrize("name", OF_BACKENDS)
def test_every_command_of_backends_has_an_example(name: str) -> None:
    command = OF_BACKENDS[name]

    assert_right(example_of(command), name.replace("serve", "backend"), command)


def example_of(command: click.Command) -> str:
    return (command.epilog or "").rpartition("\n")[2].strip()


def assert_right(example: str, name: str, command: click.Command) -> None:
    """Fail unless `example` calls the command with options and arguments that it has."""
    called = example.partition(" && ")[0].partition(f"sluicegate {name}")
    assert called[1], example
    arguments = shlex.split(called[2].rstrip('")'))
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("-")} <= options


def test_a_machine_without_the_packages_of_a_gateway_is_told_what_to_install() -> None:
    program = (
        "import sys; sys.modules['yaml'] = None;"
        " from sluicegate.gateway.cli.entry import main; main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stderr.startswith("Error: the package `yaml` is not installed; run `pip install")


def test_up_in_an_empty_folder_says_that_it_has_a_configuration_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()

    empty = run("up", "--models", "models")
    named = run("up", "--models", "models", "--config", "missing")

    assert "`sluicegate init`" in empty.stdout
    assert "`models` contains no model" in empty.stderr
    assert "`missing` is not a folder" in named.stderr
    assert named.exit_code == 3


def test_up_without_a_model_runtime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    assert ".whl[up]'`, or in a clone `pip install '.[up]'`" in run("up").stderr
