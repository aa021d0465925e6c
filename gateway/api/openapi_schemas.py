"""Makes JSON schemas of the API's types, in the form that client generators read."""

import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from typing_extensions import TypeAliasType

from sluicegate.gateway.api.field_docs import field_descriptions

Json = dict[str, Any]  # a JSON schema is free-form JSON
_REF = "#/components/schemas/{name}"

# Keywords that describe a field, and not its type.
_ABOUT = ("default", "description")
# A request has at least one item.
_ITEMS = ("input", "inputs", "documents")


class Schemas:
    """Collects the schemas of types, and of all types that they contain, by name."""

    def __init__(self, annotations: Iterable[Any]) -> None:
        self._structs = {struct.__name__: struct for struct in _structs(annotations)}
        _, components = msgspec.json.schema_components(
            list(self._structs.values()), ref_template=_REF, schema_hook=_any_value
        )
        self.components = {name: self._refined(name, schema) for name, schema in components.items()}

    def reference(self, annotation: Any) -> Json:
        """Return the schema of a value of that type; structs are named, not repeated."""
        parts = _alternatives(annotation)
        if len(parts) > 1:
            return {"anyOf": [self.reference(part) for part in parts]}
        (schema,), _ = msgspec.json.schema_components(
            [annotation], ref_template=_REF, schema_hook=_any_value
        )
        readable: Json = _readable(schema)
        return readable

    def _refined(self, name: str, raw: Json) -> Json:
        struct = self._structs.get(name)
        schema: Json = _readable(raw)
        if struct is None:  # an enumeration
            return schema
        schema["description"] = inspect.cleandoc(struct.__doc__ or "")
        fields: Json = schema["properties"]
        names = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
        for field, text in field_descriptions(struct).items():
            if (name := names.get(field, field)) in fields:
                fields[name] = _with_description(fields[name], text)
        if hasattr(struct, "task"):
            fields |= {field: _not_empty(fields[field]) for field in _ITEMS if field in fields}
        if each := getattr(struct, "each_result", ()):
            kinds = [self.reference(kind) for kind in each]
            fields["results"] |= {"items": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}
        _note_presence(struct, schema)
        return schema


def _note_presence(struct: type[msgspec.Struct], schema: Json) -> None:
    """Say which fields are always sent, and which may be null.

    In a request, a null means the same as a field left out.
    """
    fields, config = schema["properties"], struct.__struct_config__
    if config.forbid_unknown_fields:
        required = schema.get("required", ())
        fields |= {name: _or_null(fields[name]) for name in fields if name not in required}
    elif not config.omit_defaults:
        # An answer always has all fields, except those that may be unset.
        unset = {
            field.encode_name
            for field in msgspec.structs.fields(struct)
            if field.default is msgspec.UNSET
        }
        schema["required"] = [name for name in fields if name not in unset]


def _any_value(kind: type) -> Json:
    if kind is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError(kind)


def _readable(schema: Any) -> Any:
    """Return a schema without what generators of clients stumble over.

    A tuple is a list of so many values; an enumeration says its type.
    """
    if isinstance(schema, list):
        return [_readable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: _readable(part) for name, part in schema.items()}
    if schema.get("items") is False:
        kinds = schema.pop("prefixItems")
        schema["items"] = kinds[0] if all(kind == kinds[0] for kind in kinds) else {"anyOf": kinds}
    if schema.get("type") == "array":
        schema.setdefault("items", {})
    values = schema.get("enum")
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        schema["type"] = "string"
    return schema


def _not_empty(schema: Json) -> Json:
    if "anyOf" in schema:
        return schema | {"anyOf": [_not_empty(kind) for kind in schema["anyOf"]]}
    return schema | {"minItems": 1} if schema.get("type") == "array" else schema


def _or_null(schema: Json) -> Json:
    kinds = schema.get("anyOf", [schema])
    if schema.get("type") == "null" or {"type": "null"} in kinds:
        return schema
    apart = {name: schema[name] for name in _ABOUT if name in schema}
    if isinstance(apart.get("default"), dict | list):
        del apart["default"]  # generators of clients take only a scalar beside null
    rest = {name: value for name, value in schema.items() if name not in _ABOUT}
    return apart | {"anyOf": [*rest.pop("anyOf", [rest] if rest else []), {"type": "null"}]}


def _with_description(schema: Json, text: str) -> Json:
    # Beside a reference older readers see nothing else.
    described = {"allOf": [schema]} if "$ref" in schema else schema
    return described | {"description": text}


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union of structs, which no message decodes to; else `annotation`."""
    if get_origin(annotation) in (Union, types.UnionType):
        parts = get_args(annotation)
        if sum(isinstance(part, type) and issubclass(part, msgspec.Struct) for part in parts) > 1:
            return parts
    return (annotation,)


def _structs(annotations: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """Yield every struct that values of these types may hold, each once."""
    waiting, seen = list(annotations), set[Any]()
    while waiting:
        annotation = waiting.pop()
        if isinstance(annotation, TypeAliasType):
            annotation = annotation.__value__
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
            if annotation not in seen:
                seen.add(annotation)
                waiting += [field.type for field in msgspec.structs.fields(annotation)]
                waiting += getattr(annotation, "each_result", ())
                yield annotation
        else:
            waiting += get_args(annotation)
