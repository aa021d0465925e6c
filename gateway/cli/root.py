"""Puts the commands of `sluicegate` together, in the order in which `--help` lists them."""

import click
from typing_extensions import override

from sluicegate.gateway.cli.accounts import usage
from sluicegate.gateway.cli.examples import add_examples
from sluicegate.gateway.cli.ledger import ledger
from sluicegate.gateway.cli.operation_commands import OperationGroup
from sluicegate.gateway.cli.processes import admin, backend, bulk, worker
from sluicegate.gateway.cli.serving import gateway, up
from sluicegate.gateway.cli.starting import completion, init

_EPILOG = (
    "Exit codes: 0 done; 1 something failed, or a worker has not applied a change; 2 wrong usage,"
    " or a port or data directory is in use; 3 the configuration, the environment or a key is"
    " invalid; 4 the operators' listener cannot be reached, or has refused the request."
)


class _InOrder(click.Group):
    """Lists commands in the order in which they were added."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sluicegate")
def main() -> None:
    """Sluicegate: a caching inference gateway and request router for small models.

    `sluicegate up` runs everything on this machine, and prints an example request. `--help` of
    each command shows an example.
    """


config = OperationGroup(
    "config", "Check, compare, show or reload the configuration document.", written="config"
)
regions = OperationGroup(
    "regions",
    "Show, drain or restore backends, and show gateway regions' shares of limits.",
    families=("regions",),
    written="regions",
)
models = OperationGroup(
    "models", "Manage model repositories and the models that backends serve.", written="models"
)
keys = OperationGroup(
    "keys", "Create, list and revoke API keys.", families=("accounts",), written="keys"
)
budgets = OperationGroup(
    "budgets", "Set, show and remove the monthly budgets of tenants.", families=("budgets",)
)
operators = OperationGroup(
    "operators",
    "Create, list, rotate and revoke operators. Each operator has a key and roles.",
    families=("operator_accounts",),
)
for _command in (
    *(init, up, gateway, backend, worker, admin),
    *(config, regions, keys, budgets, usage, operators, ledger, models, bulk, completion),
):
    main.add_command(_command)
add_examples(main)
