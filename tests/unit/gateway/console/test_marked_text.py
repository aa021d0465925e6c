"""The parts of a text that a guard judged: nothing is lost, and overlaps are divided."""

from typing import Any

import msgspec

from sluicegate.gateway.console.marked_text import JudgedText, judged_texts

_ANSWER = {"guard": "chat", "model": "m", "revision": "r"}
_USAGE = dict.fromkeys(("items", "hit", "collapsed", "computed", "failed", "rows", "tokens"), 0)


def read(body: dict[str, Any], *spans: tuple[int, int, str, str]) -> JudgedText:
    findings = [
        {"detector": "d", "action": action, "label": label, "score": 1, "start": start, "end": end}
        for start, end, action, label in spans
    ]
    result: dict[str, Any] = {"verdict": "block", "findings": findings}
    answer = msgspec.json.encode(_ANSWER | {"usage": _USAGE, "results": [result]}).decode()
    (one,) = judged_texts(msgspec.json.encode(body), answer)
    return one


def judged(text: str, *spans: tuple[int, int, str, str]) -> list[tuple[str, str, str]]:
    parts = read({"input": text}, *spans).parts
    return [(part.text, part.action, part.labels) for part in parts]


def test_spans_are_parts_in_code_points() -> None:
    assert judged("👩‍👩 to Ada.", (7, 10, "redact", "PER")) == [
        ("👩‍👩 to ", "", ""),
        ("Ada", "redact", "d: PER 1.00"),
        (".", "", ""),
    ]


def test_the_strongest_action_marks_a_part_of_several_findings() -> None:
    assert judged("abcd", (0, 3, "flag", "A"), (1, 4, "block", "B")) == [
        ("a", "flag", "d: A 1.00"),
        ("bc", "block", "d: B 1.00, d: A 1.00"),
        ("d", "block", "d: B 1.00"),
    ]


def test_a_part_has_the_labels_of_its_three_strongest_findings() -> None:
    spans = [(0, 1, "flag", label) for label in "ABCD"]

    (part,) = judged("a", *spans, (0, 1, "block", "E"))

    assert part == ("a", "block", "d: E 1.00, d: A 1.00, d: B 1.00")


def test_pieces_are_marked_as_one_text() -> None:
    one = read({"input": ["to A", "da."], "pieces": True}, (3, 6, "block", "PER"))

    assert [part.text for part in one.parts] == ["to ", "Ada", "."]


def test_the_strongest_findings_are_marked_if_there_are_too_many() -> None:
    flags = [(at, at + 1, "flag", "A") for at in range(200)]

    one = read({"input": "a" * 201}, *flags, (200, 201, "block", "B"))

    assert (one.marked, one.findings) == (200, 201)
    assert [part.action for part in one.parts] == ["flag"] * 199 + ["", "block"]


def test_a_response_of_no_guard_has_no_marked_texts() -> None:
    assert judged_texts(b'{"input":"a"}', '{"labels":[]}') == []
    assert judged_texts(b"{", "{}") == []
