"""Serves a guard whose detectors find a word, over the fakes of the API."""

from collections.abc import Callable
from typing import Any

import msgspec

from sluicegate.gateway.types import ItemFailure
from sluicegate.wire.guards import Action, GuardConfig
from sluicegate.wire.protocol import Task
from tests.support.api import Api
from tests.support.inference_scene import INFO

_WORDS = {"kind": "words", "name": "words", "words": ["film"]}


def guard(**changes: Any) -> GuardConfig:
    """Return the configuration of a guard."""
    return msgspec.convert({"model": "detectors", "detectors": [_WORDS]} | changes, GuardConfig)


def guarded_api() -> Api:
    """Return the API with the guard `chat`, which allows every text."""
    made = Api()
    made.scene.models.infos["detectors"] = msgspec.structs.replace(
        INFO, name="detectors", tasks=[Task.GUARD]
    )
    made.scene.runner.result = lambda _: b'{"verdict":"allow","findings":[]}'
    made.configure(guards={"chat": guard()})
    return made


def finder(word: str, action: Action, label: str = "PER") -> Callable[[bytes], bytes]:
    """Return what a backend answers whose detector `words` finds a word everywhere."""

    def found(item: bytes) -> bytes:
        text: str = msgspec.msgpack.decode(item)
        starts = [place for place in range(len(text)) if text.startswith(word, place)]
        findings = [
            {
                "detector": "words",
                "action": action,
                "label": label,
                "score": 0.9,
                "start": start,
                "end": start + len(word),
            }
            for start in starts
        ]
        verdict = action if findings else "allow"
        return msgspec.json.encode({"verdict": verdict, "findings": findings})

    return found


NO_BACKEND = ItemFailure(
    status=503, code="upstream_unavailable", detail="no backend", retryable=True
)
"""Why a text was not looked at."""
