"""Holds an example of each command for `--help`. Commands of `backends` have their own examples."""

from collections.abc import Iterator
from types import MappingProxyType

import click

EXAMPLES = MappingProxyType(
    {
        "up": "sluicegate up --models ./models --port 9090",
        "init": "sluicegate init && sluicegate config check",
        "completion": 'eval "$(sluicegate completion bash)"',
        "gateway": "SLUICEGATE_CONFIG=/etc/sluicegate sluicegate gateway --workers 4",
        "worker": "sluicegate worker billing",
        "admin": "SLUICEGATE_ADMIN_PORT=8081 sluicegate admin",
        "config check": "sluicegate config check ./config",
        "config diff": "sluicegate config diff ./config",
        "config show": "sluicegate config show --json",
        "config reload": "sluicegate config reload --data-dir .sluicegate",
        "regions list": "sluicegate regions list",
        "regions shares": "sluicegate regions shares --tenant acme",
        "keys create": "sluicegate keys create acme --new-tenant --name 'web shop'",
        "keys import": "sluicegate keys import --new-tenants keys.jsonl",
        "usage": "sluicegate usage --from 2026-11-01 --group-by tenant --group-by day",
        "ledger backup": "sluicegate ledger backup ./ledger-of-today.db",
        "ledger init": "SLUICEGATE_DATA_DIR=/var/lib/sluicegate sluicegate ledger init",
        "models reload": "sluicegate models reload",
        "models rollback": "sluicegate models rollback sentiment",
        "models shadow": "sluicegate models shadow sentiment 2 --share 10",
        "models split": "sluicegate models split sentiment 1=90 2=10",
    }
)


def add_examples(group: click.Group, path: str = "") -> None:
    """Append an example to the help of each command below `group` that is loaded."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            add_examples(command, f"{path}{name} ")
        elif example := EXAMPLES.get(f"{path}{name}"):
            command.epilog = epilog(example)


def epilog(example: str) -> str:
    """Return the end of a command's help."""
    return f"\b\nExample:\n  {example}"


def all_commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the full name and the object of each command below `group`, at all levels.

    Groups themselves are left out.
    """
    context = click.Context(group)
    # A group may load some commands only when they are used.
    names = group.list_commands(context)  # may load commands, which then have an order of their own
    for name in dict.fromkeys((*group.commands, *names)):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{path}{name} ")
        elif command is not None:
            yield f"{path}{name}", command
