"""A configuration file that is mounted alone: what an editor does to it is noticed, or said."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_UNSHARE = ("unshare", "--map-root-user", "--mount")
_CAN_MOUNT = subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True).returncode == 0
# A container's view: the folder, with one file mounted over another. `$1` is what befalls it.
_SCRIPT = """
set -e
mount --bind "$HOST/gateway.yaml" "$INSIDE/gateway.yaml"
eval "$1"
exec "$PYTHON" -c "$2"
"""
_CHECK = """
import os
from pathlib import Path
from sluicegate.gateway.operations.publishing import _unchanged
from sluicegate.gateway.config.load import explain
from sluicegate.gateway.config.mounts import check_mounts
from sluicegate.gateway.errors import ConfigurationError
folder = Path(os.environ["INSIDE"])
try:
    check_mounts(folder)
    print(_unchanged(folder))
except ConfigurationError as error:
    print(explain(error))
"""

pytestmark = pytest.mark.skipif(not _CAN_MOUNT, reason="mount namespaces are not allowed here")


def said_after(edit: str, folder: Path) -> str:
    """Return what is said of a file that was mounted, and edited since."""
    host, inside = folder / "host", folder / "in side"
    for each in (host, inside):
        each.mkdir()
        (each / "gateway.yaml").write_text("deadline: {default: 5}\n")
    done = subprocess.run(
        [*_UNSHARE, "sh", "-c", _SCRIPT, "sh", edit, _CHECK],
        env={"HOST": str(host), "INSIDE": str(inside), "PYTHON": sys.executable, "PATH": "/bin"},
        check=True,
        capture_output=True,
        text=True,
        cwd=_ROOT,
    )
    return done.stdout.strip()


def test_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    said = said_after('sed -i s/5/6/ "$HOST/gateway.yaml"', tmp_path)

    assert said.startswith(f"{tmp_path}/in side/gateway.yaml: the file was replaced")
    assert "mount the folder" in said


def test_a_file_that_was_moved_away_is_named_where_nothing_changed(tmp_path: Path) -> None:
    edit = 'mv "$HOST/gateway.yaml" "$HOST/gateway.yaml~"; echo x >"$HOST/gateway.yaml"'

    said = said_after(edit, tmp_path)

    assert "mounted singly: `gateway.yaml`" in said


def test_an_edit_in_place_is_no_matter(tmp_path: Path) -> None:
    said = said_after('echo "deadline: {default: 6}" >"$INSIDE/gateway.yaml"', tmp_path)

    assert "was replaced" not in said
