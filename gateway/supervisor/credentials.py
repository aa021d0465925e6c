"""Chooses the admin key and the demo tenant's key: given by the operator, or generated once."""

import msgspec

from gateway.auth.keys import is_well_formed, new_key
from gateway.supervisor.data_directory import DataDirectory
from gateway.supervisor.errors import CannotStart, ExitCode


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Both keys in plain text; for this process and its first lines of output."""

    admin_key: str
    demo_key: str


def choose_credentials(directory: DataDirectory, *, admin_key: str, demo_key: str) -> Credentials:
    """Return the keys given, and for those that are not, one that is generated and kept.

    A generated key lies in the data directory, readable by its owner only, so that a later start
    can show it again: for the convenience of `sluicegate up`, not for production.

    Raises:
        CannotStart: a key given by hand is not 16 to 200 visible ASCII characters.
    """
    for option, key in (("--admin-key", admin_key), ("--demo-key", demo_key)):
        if key and not is_well_formed(key):
            raise CannotStart(
                f"`{option}` must be 16 to 200 visible ASCII characters",
                exit_code=ExitCode.CONFIGURATION,
            )
    return Credentials(
        admin_key=admin_key or directory.secret("admin-key", lambda: new_key("sk-admin")),
        demo_key=demo_key or directory.secret("demo-key", lambda: new_key("sk-demo")),
    )
