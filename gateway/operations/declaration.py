"""Declares operations. The admin API and the simple commands are made from the declarations.

Commands only read the declarations, and call the admin API over HTTP.

How to add an operation:

1. Write an async function in a module of this package, below `@FAMILY.operation(...)`. Its name is
   the operation's id. Its docstring is the description in the OpenAPI document.
2. Its first parameter is the `OperationContext`: the operator, and the objects to act on. The next
   parameters are those that the path names, and then the body. Keyword-only parameters are sent in
   the query, unless `Sent` says otherwise. The return type is the type of the response. If the
   result has a field `live`, pass `answers=SOON`.
3. Check the arguments in the function: `context.model_names.check` refuses names of unknown models.
   Name the errors that it raises in `errors`. Calling an operation checks the role.
4. Change the ledger with `actor=context.operator.name`: it writes the audit entry in the same
   transaction. Before any other change, write the entry with `context.audit`. An operation that
   changes nothing has none, whether it is a `GET`, a `POST` or has `dry_run`.
5. Workers report what they know: `reported(context.control, "NAME")` of `fleet_view.py` returns a
   part of the reports. `gateway/app/worker.py` gives the parts their names, in `StatsReporter`.
6. To make workers act, add a member to `Topic` and its field to `Versions`, in
   `gateway/runtime/control_values.py`, and the action to the `actions` of `RuntimeFollower` in
   `gateway/app/worker.py`. The operation calls `context.control.touch(TOPIC)`, which returns the
   version, and `wait_for_workers`, which returns each worker's outcome: `ok`, `pending`
   or a reason. `purge_cache` in `caches.py` is an example. `test_config_reload.py` tests actions.
7. For a command, add a `Command`. The command exists only if its group, an `OperationGroup` in
   `gateway/cli/root.py`, lists the module in `families`. A new group is also listed there in
   `main.add_command`. Commands import the module, so it imports Redis and SQL only below
   `if TYPE_CHECKING`. A command that does more than one call is written in `gateway/cli`, and calls
   `AdminClient.carry_out` with the operation.
8. In the console, a handler passes the fields of its form to the operation, and has the option
   `{"role": the_operation.role}`.
9. List a new module in `gateway/operations/families.py`. Describe the operation in a page of
   `docs/operations`. Run `make reference`. Test the operation over HTTP in
   `tests/integration/admin`.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, get_origin
from urllib.parse import quote

import msgspec

from sluicegate.gateway.api.openapi_parts import Content, Json, Operation as Description
from sluicegate.gateway.errors import GatewayError
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.operators import Role, check_role

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
_OK, _ACCEPTED = 200, 202
_PATH_PARAMETER = re.compile(r"{(\w+)}")
TENANT: Json = {"description": "The id of a tenant.", "example": "acme"}
DONE = "Done, and every worker has applied it"
PENDING = "Done, but not every worker has applied it yet"
SOON = {_OK: (Content(summary=DONE),), _ACCEPTED: (Content(summary=PENDING),)}
"""The answers of an operation that waits for workers. Its result has the field `live`."""


class Place(StrEnum):
    """Says in which part of a request a parameter is sent."""

    PATH = "path"
    QUERY = "query"
    HEADER = "header"
    BODY = "body"


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """Says in an annotation how a request names a parameter, if not like the function does."""

    name: str
    place: Place = Place.QUERY


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of an operation's function, without the context."""

    name: str
    sent: Sent
    type: Any
    bounds: msgspec.Meta | None
    default: Any
    """`inspect.Parameter.empty` if the parameter is required."""

    @property
    def is_required(self) -> bool:
        """Whether a request must have the parameter."""
        return self.default is inspect.Parameter.empty


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """An option of a command whose name is not the name of its parameter."""

    flag: str
    help: str


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Prints the list `rows` of a result as a table. `state` is whether a key is active."""

    rows: str
    columns: tuple[str, ...]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command that carries out an operation."""

    usage: str
    """The words of the command, and its arguments in capitals: first the parameters in the path,
    then fields of the body."""
    help: str
    example: str
    """The words after `sluicegate`."""
    prints: str | Table
    """A line for people. It names arguments and fields of the result in braces."""
    notes: str = ""
    """A line for people on standard error."""
    options: Mapping[str, str | Option] = {}
    """The help of each option, by the name of the parameter or of the body's field."""

    @property
    def words(self) -> list[str]:
        """The words that name the command."""
        return [word for word in self.usage.split() if word.islower()]

    @property
    def arguments(self) -> list[str]:
        """The names of the arguments, in lower case."""
        return [word.lower() for word in self.usage.split() if word.isupper()]


class Operation(Generic[P, R_co]):
    """An operation of operators. It is called like its function, and checks the operator's role."""

    def __init__(
        self,
        function: Callable[Concatenate[OperationContext, P], Awaitable[R_co]],
        *,
        method: str,
        path: str,
        role: Role,
        status: int,
        description: Description,
        parameters: Sequence[Parameter],
        command: Command | None,
        without_certificate: Role | None,
    ) -> None:
        self.function = function
        self.method = method
        self.path = path
        self.role = role
        self.status = status
        self.description = description
        self.command = command
        self.without_certificate = without_certificate
        self.parameters = parameters

    async def __call__(
        self, context: OperationContext, *arguments: P.args, **named: P.kwargs
    ) -> R_co:
        """Carry out the operation.

        Raises:
            PermissionDenied: the operator lacks the role.
        """
        check_role(context.operator, self.role)
        return await self.function(context, *arguments, **named)

    def fields(self) -> Iterator[msgspec.structs.FieldInfo]:
        """Yield what a command may have options for: the query's parameters, the body's fields."""
        for each in self.parameters:
            if each.sent.place is Place.QUERY:
                yield msgspec.structs.FieldInfo(
                    name=each.name,
                    encode_name=each.sent.name,
                    type=each.type,
                    default=msgspec.NODEFAULT if each.is_required else each.default,
                )
            elif isinstance(each.type, type) and issubclass(each.type, msgspec.Struct):
                yield from msgspec.structs.fields(each.type)

    def path_to(self, *values: str) -> str:
        """Return the path with these parameters. Each value is exactly one segment."""
        segments = iter(values)
        return _PATH_PARAMETER.sub(lambda _: quote(next(segments), safe=""), self.path)

    def status_of(self, result: object, *, is_dry_run: bool) -> int:
        """Return the HTTP status of a result: 202 if workers have not applied a change yet."""
        if _ACCEPTED not in self.description.answers or is_dry_run:
            return self.status
        return self.status if getattr(result, "live", True) else _ACCEPTED


class Answer(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """What an operation may return instead of a result: with a status, headers or a format."""

    result: R_co
    """A value that is encoded as JSON, or a text of the type `media`."""
    headers: Mapping[str, str] = {}
    media: str = "application/json"
    status: int | None = None
    """The HTTP status, if it is not that of the operation."""


class Family:
    """Operations that belong together. `operations` lists them in the order of their declaration.

    `about` describes parameters of any of the operations.
    """

    def __init__(self, tag: str, *, about: Mapping[str, Json] | None = None) -> None:
        self.operations: list[Operation[..., Any]] = []
        self._tag = tag
        self._about = about or {}

    def operation(
        self,
        route: str,
        summary: str,
        *,
        role: Role,
        status: int = _OK,
        errors: Sequence[type[GatewayError]] = (),
        example: object = None,
        body: Sequence[Content] = (),
        answers: Mapping[int, tuple[Content, ...]] | None = None,
        headers: tuple[str, ...] = (),
        about: Mapping[str, Json] | None = None,
        command: Command | None = None,
        without_certificate: Role | None = None,
    ) -> Callable[
        [Callable[Concatenate[OperationContext, P], Awaitable[R_co]]], Operation[P, R_co]
    ]:
        """Declare the decorated function as an operation.

        `route` is a method and a path. `example` is the example of the body. `errors` lists errors
        beside those that every route has. An operator with the role `without_certificate` needs no
        client certificate.
        """

        def declare(
            function: Callable[Concatenate[OperationContext, P], Awaitable[R_co]],
        ) -> Operation[P, R_co]:
            method, path = route.split()
            parameters = _parameters(function, path)
            declared = Operation(
                function,
                method=method,
                path=path,
                role=role,
                status=status,
                parameters=parameters,
                command=command,
                without_certificate=without_certificate,
                description=Description(
                    id=function.__name__,
                    summary=summary,
                    tag=self._tag,
                    errors=tuple(errors),
                    body=tuple(body) or (() if example is None else (Content(example=example),)),
                    is_body_required=all(
                        each.is_required for each in parameters if each.sent.place is Place.BODY
                    ),
                    answers=answers or {},
                    headers=headers,
                    about={**self._about, **(about or {})},
                ),
            )
            if command is not None:
                _check_flags(declared, command)
            self.operations.append(declared)
            return declared

        return declare


def _check_flags(operation: Operation[..., Any], command: Command) -> None:
    for field in operation.fields():
        is_on = field.default is True or (field.type is bool and field.required)
        if field.name in command.options and is_on:  # a command cannot send that it is off
            raise TypeError(f"`{field.name}` is a flag: its default must be false")


def _parameters(function: Callable[..., Any], path: str) -> tuple[Parameter, ...]:
    """Return the parameters after the context."""
    in_path = _PATH_PARAMETER.findall(path)
    _, *rest = inspect.signature(function).parameters.values()
    return tuple(_parameter(each, in_path) for each in rest)


def _parameter(parameter: inspect.Parameter, in_path: Sequence[str]) -> Parameter:
    kind, *marks = (
        get_args(parameter.annotation)
        if get_origin(parameter.annotation) is Annotated
        else (parameter.annotation,)
    )
    if parameter.name in in_path:
        place = Place.PATH
    elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        place = Place.QUERY
    else:
        place = Place.BODY
    return Parameter(
        name=parameter.name,
        sent=next(
            (mark for mark in marks if isinstance(mark, Sent)),
            Sent(name=parameter.name, place=place),
        ),
        type=kind,
        bounds=next((mark for mark in marks if isinstance(mark, msgspec.Meta)), None),
        default=parameter.default,
    )
