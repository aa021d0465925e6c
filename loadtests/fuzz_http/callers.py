"""Lists the callers: five tenants, a key each, and the bodies of their requests."""

import hashlib
import json
import random

import msgspec

NAMES = ("amber", "birch", "cedar", "dune", "elm")
_KNOWN_TEXTS = 40
_NEW = 0.06
MAX_BODY_BYTES = 64 * 1024
MAX_ITEMS = 2048


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant and its key."""

    tenant: str
    key: str

    @property
    def scope(self) -> str:
        """The scope that the gateway passes to backends."""
        return f"tenant:{self.tenant}"


def callers(seed: int) -> list[Caller]:
    """Return the callers of a seed; all their keys have the same length."""
    return [
        Caller(tenant=name, key=f"sk-{hashlib.sha256(f'{seed}/{name}'.encode()).hexdigest()[:40]}")
        for name in NAMES
    ]


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """A valid body and the texts in it."""

    content: bytes
    texts: tuple[str, ...]
    continues: bool = False
    """Whether the body says `on_error: continue`."""


def body(chance: random.Random, unique: str) -> RequestBody:
    """Return a valid body for `/v1/classify`; if `unique`, no other request has an equal body."""
    if chance.random() < 0.8:
        text = _text(chance, unique)
        return RequestBody(content=b'{"model":"stub","input":"%b"}' % text.encode(), texts=(text,))
    texts = tuple(_text(chance, f"{unique}.{index}") for index in range(chance.randint(1, 6)))
    fields: list[tuple[str, object]] = [("model", "stub"), ("input", list(texts))]
    if len(texts) == 1 and chance.random() < 0.5:
        fields[1] = ("input", texts[0])
    fields += chance.sample(_WISHES, k=chance.randint(0, len(_WISHES)))
    chance.shuffle(fields)
    indent = chance.choice([None, None, 1])
    content = json.dumps(dict(fields), indent=indent)
    if chance.random() < 0.3:
        content = content.replace("t", "\\u0074")  # the same JSON, names included
    return RequestBody(content=content.encode(), texts=texts, continues=_CONTINUE in fields)


_CONTINUE = ("on_error", "continue")
_WISHES: list[tuple[str, object]] = [
    ("top_k", 3),
    ("function", "softmax"),
    ("function", None),
    _CONTINUE,
]


def _text(chance: random.Random, unique: str) -> str:
    if chance.random() < _NEW:
        return f"new {unique}"
    return f"text {chance.randrange(_KNOWN_TEXTS)}"
