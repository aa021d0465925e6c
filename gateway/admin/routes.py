"""Makes Litestar handlers from the declarations of operations."""

import inspect
from collections.abc import Iterable, Mapping
from types import GenericAlias
from typing import Annotated, Any, get_args, get_origin

import msgspec
from litestar import Request, Response, delete, get, post, put
from litestar.di import Dependency
from litestar.enums import RequestEncodingType
from litestar.handlers import HTTPRouteHandler
from litestar.params import BodyKwarg, HeaderParameter, PathParameter, QueryParameter

from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import Answer, Operation, Parameter, Place

_METHODS = {"GET": get, "POST": post, "PUT": put, "DELETE": delete}
_CONTEXT, _REQUEST, _BODY, _DRY_RUN = "context", "request", "data", "dry_run"
AnyRequest = Request[Any, Any, Any]
AnyOperation = Operation[..., Any]


def route_of(operation: AnyOperation) -> HTTPRouteHandler:
    """Return the handler of an operation."""
    parameters = {_given_name(each): each for each in operation.parameters}
    raw = next((each for each in operation.parameters if _is_raw(each)), None)
    numbers = [each for each in operation.parameters if int in get_args(each.type)]

    async def handle(**given: Any) -> Response[Any]:  # Any: the parameters have several types
        context: OperationContext = given.pop(_CONTEXT)
        request: AnyRequest | None = given.pop(_REQUEST, None)
        arguments = {parameters[name].name: value for name, value in given.items()}
        if request is not None:
            _refuse_null(request, numbers, arguments)
        if request is not None and raw is not None:
            arguments |= await _raw_body(request, raw)
        result = await operation(context, **arguments)
        return _response(operation, result, is_dry_run=bool(arguments.get(_DRY_RUN)))

    kinds = {name: _annotation(each) for name, each in parameters.items() if each is not raw}
    kinds[_CONTEXT] = Annotated[Any, Dependency(kind="named")]
    if raw is not None or numbers:
        kinds[_REQUEST] = AnyRequest
    returned = inspect.signature(operation.function).return_annotation
    if get_origin(returned) is Answer:
        (returned,) = get_args(returned)
    _describe(handle, operation, kinds, GenericAlias(Response, (returned,)))
    path = operation.path
    for each in operation.parameters:
        if each.sent.place is Place.PATH:
            path = path.replace(f"{{{each.name}}}", f"{{{each.name}:{each.type.__name__}}}")
    decorate = _METHODS[operation.method](
        path,
        status_code=operation.status,
        opt={"role": operation.role, "without_certificate": operation.without_certificate},
        operation=operation.description,
    )
    handler: HTTPRouteHandler = decorate(handle)
    return handler


def _given_name(parameter: Parameter) -> str:
    return _BODY if parameter.sent.place is Place.BODY else parameter.name


def _is_raw(parameter: Parameter) -> bool:
    """Return whether the handler reads the body itself: as bytes, or because it is optional."""
    is_body = parameter.sent.place is Place.BODY
    return is_body and (parameter.type is bytes or not parameter.is_required)


def _refuse_null(
    request: AnyRequest, numbers: Iterable[Parameter], arguments: Mapping[str, object]
) -> None:
    """Refuse the value `null` of an optional number. Litestar treats it like a missing value."""
    for each in numbers:
        if arguments.get(each.name) is None and each.sent.name in request.query_params:
            raise InvalidRequest(f"`{each.sent.name}` must be a number")


async def _raw_body(request: AnyRequest, parameter: Parameter) -> Mapping[str, object]:
    body = await request.body()
    if parameter.type is bytes:
        return {parameter.name: body}
    if not body:
        return {}
    try:
        return {parameter.name: msgspec.json.decode(body, type=parameter.type)}
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is invalid: {error}") from error


def _annotation(parameter: Parameter) -> Any:  # Any: an annotation
    kind, place = parameter.type, parameter.sent.place
    bounds = parameter.bounds or msgspec.Meta()
    renamed = parameter.sent.name if parameter.sent.name != parameter.name else None
    if place is Place.PATH:
        return Annotated[kind, PathParameter()]
    if place is Place.BODY:
        return Annotated[kind, BodyKwarg(media_type=RequestEncodingType.JSON)]
    if place is Place.HEADER:
        return Annotated[kind, HeaderParameter(name=renamed)]
    return Annotated[kind, QueryParameter(name=renamed, ge=bounds.ge, le=bounds.le)]


def _describe(
    handle: Any,  # Any: a function whose signature is replaced
    operation: AnyOperation,
    kinds: Mapping[str, Any],
    returned: Any,
) -> None:
    """Give a function the name, docstring and signature that Litestar reads."""
    defaults = {_given_name(each): each.default for each in operation.parameters}
    handle.__name__ = operation.description.id
    handle.__doc__ = operation.function.__doc__
    handle.__annotations__ = {**kinds, "return": returned}
    handle.__signature__ = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, inspect.Parameter.empty),
                annotation=kind,
            )
            for name, kind in kinds.items()
        ],
        return_annotation=returned,
    )


def _response(operation: AnyOperation, result: Any, *, is_dry_run: bool) -> Response[Any]:
    answer = result if isinstance(result, Answer) else Answer(result=result)
    return Response(
        answer.result,
        status_code=answer.status or operation.status_of(answer.result, is_dry_run=is_dry_run),
        headers=answer.headers,
        media_type=answer.media,
    )
