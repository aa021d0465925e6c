"""Lists the callers, five tenants with a key each, and makes bodies: valid, mutated or broken."""

import json
import random

import msgspec

NAMES = ("amber", "birch", "cedar", "dune", "elm")
_KNOWN_TEXTS = 40
_NEW = 0.06
_CONTINUE = ("on_error", "continue")
_WISHES: list[tuple[str, object]] = [
    ("top_k", 3),
    ("function", "softmax"),
    ("function", None),
    _CONTINUE,
]
_SPLICES = (
    *(b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b"\r\n\r\n", b"\xff", b"%00", b"{", b'"'),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 1\r\n", b"Connection: close\r\n"),
    *(b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"A" * 300),
)


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
    chance = random.Random(seed)
    return [Caller(tenant=name, key=f"sk-{chance.randbytes(20).hex()}") for name in NAMES]


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
    content = json.dumps(dict(fields), indent=chance.choice([None, None, 1]))
    if chance.random() < 0.3:
        content = content.replace("t", "\\u0074")  # the same JSON, names included
    return RequestBody(content=content.encode(), texts=texts, continues=_CONTINUE in fields)


def _text(chance: random.Random, unique: str) -> str:
    if chance.random() < _NEW:
        return f"new {unique}"
    return f"text {chance.randrange(_KNOWN_TEXTS)}"


def mutated(chance: random.Random, content: bytes) -> bytes:
    """Return `content` with some bytes changed, removed or repeated."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(len(changed))
        match chance.randrange(4):
            case 0:
                changed[at] = chance.randrange(256)
            case 1:
                del changed[at : at + chance.randint(1, 8)]
            case 2:
                changed[at:at] = chance.choice(_SPLICES)
            case _:
                changed[at:at] = changed[at : at + chance.randint(1, 40)]
        changed = changed or bytearray(b"\r")
    return bytes(changed)


def mutated_json(chance: random.Random, content: bytes) -> bytes:
    """Return a JSON body that is broken or has another meaning."""
    if chance.random() < 0.5:
        return mutated(chance, content)
    return chance.choice(
        [
            content[: chance.randrange(len(content))],
            content + chance.choice([b" ", b"\n", b"x", b"\x00", b"{}"]),
            b"\xef\xbb\xbf" + content,
            content.decode().encode("utf-16"),
            b"[" * chance.randint(1, 5000),
            b'{"model":"stub","input":' + b"[" * 500 + b"]" * 500 + b"}",
            b'{"model":"stub","input":["a", "\\ud800"]}',
            b'{"model":"stub","input":["a", "\\u0000"]}',
            b'{"model":"stub","input":"a","top_k":%d}' % 10 ** chance.randint(1, 400),
            b'{"model":"stub","input":"a","top_k":1e999}',
            b'{"model":"stub","input":"a","top_k":-1}',
            b'{"model":"stub","input":"a","input":"b"}',
            b'{"model":"stub","input":NaN}',
            b'{"model":{"stub":1},"input":"a"}',
            b'{"model":"stub","input":"\xc3\x28"}',
            b'{"model":"stub","input":[]}',
            b'{"model":"","input":"a"}',
            b'{"model":"stub","input":[["a","b"],["a"]]}',
            b"null",
            b"",
        ]
    )


def is_json(content: bytes) -> bool:
    """Return whether `content` is UTF-8 JSON by RFC 8259; a byte-order mark may come first."""
    try:
        json.loads(content.decode("utf-8-sig"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        return False
    return True


def _no_number(name: str) -> None:
    raise ValueError(name)
