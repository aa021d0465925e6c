"""Writes programs that send an operation's example: with curl, Python and JavaScript.

Each runs as it stands, with an address and a key in the environment: for customers
`SLUICEGATE_URL` and `SLUICEGATE_KEY`. Tests run them.
"""

import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from sluicegate.gateway.api.openapi_parts import Json

OWN_TAGS = frozenset({"inference", "metadata", "health"})
"""Tags of the operations that the client `sluicegate` has a method for, by their ids."""
_JSON, _FORM = "application/json", "multipart/form-data"
# The file of a form, and the parameter that names what a page follows: an example names nothing.
_FILE, _CURSOR = "file", "after"
# The client takes these in their places; it names the others as the API does, but for two.
_PLACES = ("model", "input", "query", "documents", "inputs")
_RENAMED = {"from": "since", "to": "until"}


class SampleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Names the environment variables of programs, and what they may use."""

    url: str
    key: str
    has_client: bool
    """Whether the client `sluicegate` has methods for operations of `OWN_TAGS`."""


CUSTOMERS = SampleSettings(url="SLUICEGATE_URL", key="SLUICEGATE_KEY", has_client=True)
OPERATORS = SampleSettings(url="SLUICEGATE_ADMIN_URL", key="SLUICEGATE_ADMIN_KEY", has_client=False)


class _Example(msgspec.Struct, frozen=True, kw_only=True):
    """An operation's example: what to send where."""

    id: str
    method: str
    target: str
    is_public: bool
    values: dict[str, Any]
    """Of parameters and body, by name."""
    body: Any
    is_form: bool
    environment: SampleSettings


def code_samples(
    method: str, path: str, operation: Json, environment: SampleSettings = CUSTOMERS
) -> list[Json]:
    """Return the value of `x-codeSamples`; empty where the body is neither JSON nor a form."""
    content = operation.get("requestBody", {}).get("content", {_JSON: {}})
    media = next((each for each in (_JSON, _FORM) if each in content), "")
    if not media:
        return []
    parameters = operation.get("parameters", [])
    places, query = (
        {
            one["name"]: one["example"]
            for one in parameters
            if one["in"] == place and one["name"] != _CURSOR and "example" in one
        }
        for place in ("path", "query")
    )
    (body, *_) = [e["value"] for e in content[media].get("examples", {}).values()] or [None]
    target = path.format(**{name: quote(str(value), safe="") for name, value in places.items()})
    example = _Example(
        id=operation["operationId"],
        method=method.upper(),
        target=f"{target}?{urlencode(query, doseq=True)}" if query else target,
        is_public=operation.get("security") == [],
        values=places | query | (body if isinstance(body, dict) else {}),
        body=body,
        is_form=media == _FORM,
        environment=environment,
    )
    has_method = environment.has_client and OWN_TAGS & set(operation["tags"])
    python = _own_client if has_method else _httpx
    return [
        {"lang": "shell", "label": "curl", "source": _curl(example)},
        {"lang": "python", "label": "Python", "source": python(example)},
        {"lang": "javascript", "label": "JavaScript", "source": _fetch(example)},
    ]


def _curl(example: _Example) -> str:
    lines = [f'curl -s "${example.environment.url}{example.target}"']
    if example.method != ("GET" if example.body is None else "POST"):
        lines.append(f"-X {example.method}")
    lines += [
        f'-H "{name}: {value}"' for name, value in _headers(example, f"${example.environment.key}")
    ]
    if example.is_form:
        lines += [f"-F {shlex.quote(f'{name}={value}')}" for name, value in _fields(example)]
        lines.append(f"-F 'file=@-;filename=lines.jsonl' <<'END'\n{example.body[_FILE]}\nEND")
    elif example.body is not None:
        lines.append(f"-d {shlex.quote(_json(example.body))}")
    return " \\\n  ".join(lines) + "\n"


def _own_client(example: _Example) -> str:
    values = example.values
    arguments = [repr(values[name]) for name in _PLACES if name in values]
    arguments += [
        f"{_RENAMED.get(name, name)}={value!r}"
        for name, value in values.items()
        if name not in _PLACES
    ]
    return (
        "from sluicegate import Sluicegate\n\n"
        "with Sluicegate() as client:\n"
        f"    print(client.{example.id}({', '.join(arguments)}))\n"
    )


def _httpx(example: _Example) -> str:
    headers = "".join(
        f"    {name!r}: {'f' * ('{' in value)}{value!r},\n"
        for name, value in _headers(example, f"{{os.environ[{example.environment.key!r}]}}")
    )
    body = "" if example.body is None else f"    json={example.body!r},\n"
    if example.is_form:
        file = ("lines.jsonl", example.body[_FILE])
        body = f"    data={dict(_fields(example))!r},\n    files={{'file': {file!r}}},\n"
    return (
        "import os\n\nimport httpx\n\n"
        f"headers = {{\n{headers}}}\n"
        "response = httpx.request(\n"
        f"    {example.method!r},\n"
        f"    os.environ[{example.environment.url!r}] + {example.target!r},\n"
        f"    headers=headers,\n{body}"
        ")\n"
        "response.raise_for_status()\nprint(response.text)\n"
    )


def _fetch(example: _Example) -> str:
    headers = "".join(
        f"\n    {_json(name)}: `{value}`,"
        for name, value in _headers(example, f"${{process.env.{example.environment.key}}}")
    )
    headers += "\n  " if headers else ""
    form, body = "", ""
    if example.is_form:
        form = "const form = new FormData();\n" + "".join(
            f"form.append({_json(name)}, {_json(value)});\n" for name, value in _fields(example)
        )
        text = _json(example.body[_FILE])
        form += f'form.append("file", new Blob([{text}]), "lines.jsonl");\n'
        body = "  body: form,\n"
    elif example.body is not None:
        body = f"  body: JSON.stringify({_json(example.body)}),\n"
    return form + (
        f"const response = await fetch(`${{process.env.{example.environment.url}}}"
        f"{example.target}`, {{\n"
        f"  method: {_json(example.method)},\n"
        f"  headers: {{{headers}}},\n{body}"
        "});\n"
        "console.log(response.status, await response.text());\n"
    )


def _headers(example: _Example, key: str) -> Iterator[tuple[str, str]]:
    if not example.is_public:
        yield "Authorization", f"Bearer {key}"
    if example.body is not None and not example.is_form:
        yield "Content-Type", _JSON


def _fields(example: _Example) -> Iterator[tuple[str, str]]:
    """Yield the fields of a form, without its file."""
    return ((name, value) for name, value in example.body.items() if name != _FILE)


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
