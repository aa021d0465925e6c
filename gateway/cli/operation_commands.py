"""Makes commands from the declarations of operations."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from importlib import import_module
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import click
import msgspec
from typing_extensions import override

from sluicegate.gateway.cli.admin_client import AdminClient, admin_options, print_change, print_json
from sluicegate.gateway.cli.examples import add_examples, epilog
from sluicegate.gateway.cli.tables import print_table
from sluicegate.gateway.operations.declaration import Command, Operation, Option, Place, Table
from sluicegate.gateway.periods import utc_now

AnyOperation = Operation[..., Any]


class OperationGroup(click.Group):
    """Commands that carry out operations. They are imported when one of them is used.

    `families` names modules of `gateway.operations`. `written` names a module of `gateway.cli`
    whose `COMMANDS` are written by hand.
    """

    def __init__(
        self, name: str, description: str, *, families: Sequence[str] = (), written: str = ""
    ) -> None:
        super().__init__(name, help=description)
        self._families = families
        self._written = written

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        self._load()
        return super().list_commands(ctx)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        self._load()
        return super().get_command(ctx, cmd_name)

    def _load(self) -> None:
        if self.commands:
            return
        if self._written:
            for command in import_module(f"sluicegate.gateway.cli.{self._written}").COMMANDS:
                self.add_command(command)
        for name in self._families:
            for operation in import_module(
                f"sluicegate.gateway.operations.{name}"
            ).FAMILY.operations:
                if operation.command is not None and operation.command.words[0] == self.name:
                    self.add_command(command_of(operation, operation.command))
        add_examples(self, f"{self.name} ")


def command_of(operation: AnyOperation, declared: Command) -> click.Command:
    """Return the command of an operation."""
    places = [each.sent.place for each in operation.parameters]
    segments = declared.arguments[: places.count(Place.PATH)]
    in_query = [each.name for each in operation.parameters if each.sent.place is Place.QUERY]
    fields = {field.name: field for field in operation.fields()}

    def run(*, client: AdminClient, as_json: bool, **given: Any) -> None:
        sent = {
            name: value
            for name, value in given.items()
            if name not in segments and (name in declared.arguments or _is_given(value))
        }
        query = {
            fields[name].encode_name: _in_query(sent.pop(name)) for name in in_query if name in sent
        }
        body = {fields[name].encode_name: value for name, value in sent.items()}
        answer = client.carry_out(
            operation,
            *(given[name] for name in segments),
            query=query,
            body=body if Place.BODY in places else None,
        )
        _show(declared, answer, given, as_json=as_json)

    command = admin_options(run)
    for name, described in reversed(tuple(declared.options.items())):
        command = _option(name, described, fields[name])(command)
    for argument in reversed(declared.arguments):
        command = click.argument(argument)(command)
    return click.command(
        declared.words[-1], help=declared.help, epilog=epilog(f"sluicegate {declared.example}")
    )(command)


def _option(name: str, described: str | Option, field: msgspec.structs.FieldInfo) -> Any:
    if isinstance(described, str):
        described = Option(flag=f"--{name.replace('_', '-')}", help=described)
    kind, is_list = _kind(field.type)
    settings: dict[str, Any] = {"multiple": True} if is_list else {"default": ""}
    if kind is bool:
        settings = {"is_flag": True}
    elif kind in (int, float) and not is_list:
        settings = {} if field.required else {"default": field.default, "show_default": True}
    return click.option(
        described.flag,
        name,
        type=None if kind is bool else _click_type(kind),
        required=field.required,
        help=described.help,
        **settings,
    )


def _kind(annotation: Any) -> tuple[Any, bool]:
    """Return the type of a value, and whether there may be several."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (list, tuple):
        return _kind(get_args(annotation)[0])[0], True
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return _kind(kinds[0]) if kinds else (annotation, False)


def _click_type(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return click.Choice([str(each.value) for each in kind])
    return kind if kind in (int, float) else str


def _is_given(value: object) -> bool:
    # Empty values are left out. So a listener of the previous version accepts the request if it
    # does not know a new field.
    return not (value is None or value is False or value in ("", ()))


def _in_query(value: object) -> str:
    return "true" if value is True else str(value)


def _show(declared: Command, answer: Any, given: Mapping[str, Any], *, as_json: bool) -> None:
    line = ""
    if isinstance(declared.prints, str) and not as_json:
        line = _line(declared, declared.prints, answer, given)
    if "workers" in answer and "live" in answer:
        print_change(answer, as_json=as_json, head=line)
    elif as_json:
        print_json(answer)
    elif isinstance(declared.prints, Table):
        _print_rows(declared.prints, answer)
    else:
        click.echo(line)
    if declared.notes and not as_json:
        click.echo(_line(declared, declared.notes, answer, given), err=True)


def _line(declared: Command, template: str, answer: Any, given: Mapping[str, Any]) -> str:
    values = {
        name: _Listed(value) if isinstance(value, list) else value for name, value in answer.items()
    }
    return template.format_map(values | {name: given[name] for name in declared.arguments})


class _Listed(list[object]):
    """Is printed with commas between its items."""

    @override
    def __format__(self, separator: str) -> str:
        return (separator or ", ").join(map(str, self))


def _print_rows(table: Table, answer: Any) -> None:
    now = utc_now()

    def cell(row: Any, column: str) -> object:
        if column == "state":
            return _key_state(row, now)
        value = row[column]
        return ",".join(value) if isinstance(value, list) else value

    rows = ([cell(row, column) for column in table.columns] for row in answer[table.rows])
    print_table(table.columns, rows)


def _key_state(key: dict[str, Any], now: datetime) -> str:
    """Return the state of a key. `key` is the listener's description of the key."""
    if key["revoked"]:
        return "revoked"
    ends = key["expires"]
    return "expired" if ends and datetime.fromisoformat(ends) <= now else "active"
