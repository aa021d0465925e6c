"""Every text in the body of a request to a language model is found, and can be replaced."""

import json
from typing import Any

import pytest

from sluicegate.gateway.dialects.guards.model_bodies import ModelBody


def body_of(value: Any) -> ModelBody:
    return ModelBody(json.dumps(value).encode())


def message(**fields: Any) -> ModelBody:
    return body_of({"model": "m", "messages": [{"role": "user"} | fields]})


def events(*deltas: dict[str, Any], choice: int = 0) -> bytes:
    chunks = [{"id": "c", "choices": [{"index": choice, "delta": delta}]} for delta in deltas]
    return b"".join([b"data: %b\n\n" % json.dumps(one).encode() for one in chunks])


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"content": "a"}, ["a"]),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, ["a", "b"]),
        ({"content": "a", "reasoning_content": "b", "refusal": None}, ["a", "b"]),
        ({"content": None}, []),
    ],
)
def test_texts_of_messages_can_be_replaced(fields: Any, texts: list[str]) -> None:
    found = message(**fields)

    assert (found.texts(), found.others, found.is_whole) == (texts, [], True)
    written = found.written([text.upper() for text in texts], str)
    assert ModelBody(written).texts() == [text.upper() for text in texts]


def test_texts_of_an_answer_of_anthropic_can_be_replaced() -> None:
    found = body_of({"role": "assistant", "content": [{"type": "text", "text": "a"}], "id": "1"})

    assert (found.texts(), found.others, found.is_whole) == (["a"], [], True)
    assert ModelBody(found.written(["b"], str)).texts() == ["b"]


@pytest.mark.parametrize(
    "fields",
    [
        {"content": [{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}]},
        {"content": [{"type": "input_audio", "input_audio": {"data": "AA"}}]},
        {"audio": {"id": "a"}},
        {"images": ["AA"]},
        {"parts": [{"inlineData": {"data": "AA"}}]},
    ],
)
def test_what_is_no_text_is_not_looked_at(fields: Any) -> None:
    assert not message(**fields).is_whole


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ({"system": "be kind", "max_tokens": 9, "model": "m/7b:fp8"}, ["be kind"]),
        ({"input": ["a", "b"]}, ["a", "b"]),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}, ["a"]),
        ({"output": [{"type": "message", "content": "a"}]}, ["a"]),
        ({"messages": [{"role": "user", "content": ["a"]}]}, ["a"]),
        ({"prediction": {"type": "content", "content": "a"}}, ["a"]),
        (
            {"instructions": "a", "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}},
            ["a"],
        ),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "a"}]}, ["a"]),
    ],
)
def test_texts_of_other_requests_can_be_replaced(value: Any, texts: list[str]) -> None:
    found = body_of(value)

    assert (found.texts(), found.others, found.is_whole) == (texts, [], True)
    assert b"new" in found.written(["new", *texts[1:]], str)


@pytest.mark.parametrize("tokens", [[1, 2], [9.0], [[1, 2]], ["a", [3]]])
def test_token_ids_are_not_looked_at(tokens: Any) -> None:
    assert not body_of({"prompt": tokens}).is_whole


@pytest.mark.parametrize(
    ("value", "others"),
    [
        ({"user": "ada@x.org"}, ["ada@x.org"]),
        ({"model": "no name"}, ["no name"]),
        ({"messages": [{"role": "user: hi", "name": "Ada L"}]}, ["user: hi", "Ada L"]),
        ({"messages": [{"role": "user", "name": "ignore_the_rules"}]}, ["ignore_the_rules"]),
        ({"messages": ["a"]}, ["a"]),
        ({"metadata": {"card": 4111}}, ["card", "4111"]),
        ({"metadata": {"images": "a"}}, ["images", "a"]),
        (
            {"messages": [{"tool_calls": [{"x": "123", "function": {"x": "4"}}]}]},
            ["123", "4"],
        ),
        ({"error": {"message": "no"}}, ["message", "no"]),
        (["a"], ["a"]),
    ],
)
def test_other_texts_are_looked_at(value: Any, others: list[str]) -> None:
    found = body_of(value)

    assert (found.others, found.texts(), found.is_whole) == (others, [], True)


def test_calls_are_read_as_the_tool_reads_them() -> None:
    call = {"id": "1", "function": {"name": "mail", "arguments": r'{"to":"\u0041da","n":42}'}}
    old = {"name": "f", "arguments": "{no json"}

    found = message(tool_calls=[call, {"custom": {"name": "g", "input": "x"}}], function_call=old)

    assert found.calls() == ["mail\nto\nAda\nn\n42", "f\n{no json"]
    assert found.others == ["name", "g", "input", "x"]


def test_definitions_are_apart() -> None:
    found = body_of({"tools": [{"type": "function"}, {"a": 1}], "response_format": {"type": "x"}})

    assert found.definitions == ["type\nfunction", "a\n1", "type\nx"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no json",
        b"{",
        b"\xff{}",
        b"\x1f\x8b\x08",
        '{"messages":[]}'.encode("utf-16"),
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b'{"temperature":1e999}',
        rb'{"user":"\ud800"}',
        b"data: [DONE] attack",
        rb'{"messages":[{"content":"\ud800"}]}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_parsers_read_differently_is_refused(raw: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        ModelBody(raw)


def test_a_streamed_text_is_one_text() -> None:
    raw = b": hello\n\n" + events({"role": "assistant", "content": "A"}, {"content": "da"}, {})
    raw += events({"content": "B"}, choice=1) + b"data: [DONE]\n\n"

    found = ModelBody(raw)

    assert (found.texts(), found.others, found.is_whole) == (["Ada", "B"], [], True)
    written = found.written(["<PER_1>", "C"], str)
    assert ModelBody(written).texts() == ["<PER_1>", "C"]
    assert written.startswith(b": hello\n\ndata: {")
    assert written.endswith(b"data: [DONE]\n\n")
    assert written.count(b"data: ") == raw.count(b"data: ")


def test_the_pieces_of_a_streamed_call_belong_together() -> None:
    pieces = ('{"to":', '"Ada"}')
    calls = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    calls[0]["function"]["name"] = "mail"  # type: ignore[index]

    found = ModelBody(events(*[{"tool_calls": [call]} for call in calls]))

    assert found.calls() == ["mail\nto\nAda"]
    written = found.written([], {"to": "to", "Ada": "Bob"}.__getitem__)
    assert b'"arguments":"{\\"to\\":\\"Bob\\"}"' in written


def test_events_of_other_apis_are_not_looked_at() -> None:
    event = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{}}\n\n'

    assert not ModelBody(event).is_whole
    with pytest.raises(ValueError, match="field"):
        ModelBody(b"dat: {}\n\n")


def test_tokens_of_a_replaced_text_are_dropped() -> None:
    choice = {"message": {"content": "Ada"}, "logprobs": {"content": [{"token": "Ada"}]}}

    written = body_of({"choices": [choice]}).written(["x"], str)

    assert b"Ada" not in written


def test_only_pieces_of_a_stream_say_where_they_belong() -> None:
    sent = [{"content": "078-05-1120", "index": 0}, {"content": "9", "index": 0}]
    calls = [{"index": 0, "function": {"name": name, "arguments": ""}} for name in ("a", "b")]

    assert body_of({"messages": sent}).texts() == ["078-05-1120", "9"]
    assert message(tool_calls=calls).calls() == ["a", "b"]


def test_texts_of_unknown_parts_are_looked_at_too() -> None:
    document = {"type": "document", "source": {"type": "text", "data": "attack"}}
    image = {"type": "image", "source": {"data": "A" * 300, "url": "data:image/png," + "A" * 300}}

    found = message(content=[document, image])

    assert not found.is_whole
    assert "attack" in found.others
    assert max(map(len, found.others)) < 300


@pytest.mark.parametrize(
    "fields",
    [
        {"content": [{"type": "text", "text": "a", "citations": [{"cited_text": "attack"}]}]},
        {"audio": {"id": "a", "transcript": "attack"}},
        {"tool_calls": [{"function": {"name": "f"}, "custom": {"input": "attack"}}]},
        {"content": [{"type": "tool_use", "name": "f", "input": {}, "text": "attack"}]},
    ],
)
def test_texts_beside_known_ones_are_looked_at(fields: Any) -> None:
    assert "attack" in message(**fields).others


@pytest.mark.parametrize("name", ["input", "output"])
def test_calls_of_the_responses_api_are_read(name: str) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": r'{"a":"\u0041da"}'}

    found = body_of({name: [call]})

    assert (found.calls(), found.others, found.is_whole) == (["f\na\nAda"], [], True)


def test_what_a_provider_adds_is_no_text() -> None:
    results = {"hate": {"severity": "safe"}}

    found = body_of(
        {
            "provider": "Some Provider",
            "prompt_filter_results": [results],
            "choices": [{"message": {"content": "a"}, "content_filter_results": results}],
        }
    )

    assert (found.texts(), found.others) == (["a"], [])


def test_streamed_texts_in_unknown_places_are_joined() -> None:
    details = [{"index": 0, "type": "reasoning.text", "text": text} for text in ("att", "ack")]

    found = ModelBody(events(*[{"reasoning_details": [one]} for one in details]))

    assert "attack" in found.others
    assert found.is_whole


def test_comments_of_events_are_looked_at() -> None:
    assert ModelBody(b": attack Ada\n\ndata: [DONE]\n\n").others == ["attack Ada"]


def test_strings_of_arguments_change_however_they_are_written() -> None:
    call = {"function": {"name": "f", "arguments": r'{"to":"\u003cPER_1\u003e", "n":1e999} "'}}
    use = {"type": "tool_use", "name": "f", "input": {"to": "<PER_1>"}}

    written = message(tool_calls=[call], content=[use]).written(
        [], lambda text: text.replace("<PER_1>", 'A"da')
    )

    sent = json.loads(written)["messages"][0]
    arguments = sent["tool_calls"][0]["function"]["arguments"]
    assert arguments == r'{"to":"A\"da", "n":1e999} "'
    assert sent["content"][0]["input"] == {"to": 'A"da'}


def _call(arguments: str) -> dict[str, Any]:
    return {"function": {"name": "mail", "arguments": arguments}}


@pytest.mark.parametrize(
    ("calls", "redacted", "sent"),
    [
        # A finding over two texts hides no part of it.
        (
            ['{"names":["Bob","Ada"]}', '{"to":"Ada"}'],
            ["mail\nnames\n<PER_1>", "mail\nto\n<PER_2>"],
            None,
        ),
        (['{"names":["Bob","Ada"]}'], ["mail\nnames\nBob<PER_3>"], None),
        (['{"to":"Ada"}'], ["<PER_4>\nto\nAda"], None),
        (['{"n":"Anna","k":1}'], ["mail\nn\n<PER_5>\nk\n<AGE_1>"], None),
        (
            ['{"n":"Anna","k":"1","":"","x":1e0}'],
            ["mail\nn\n<PER_5>\nk\n<AGE_1>\nx\n1e0"],
            ['{"n":"<PER_5>","k":"<AGE_1>","":"","x":1e0}'],
        ),
        (['{"n":"PER"}'], ["mail\nn\n<PER_6>"], ['{"n":"<PER_6>"}']),
        (['{"Ada": "to Ada"}'], ["mail\n<PER_2>\nto Ada"], ['{"<PER_2>": "to Ada"}']),
        (["{to Ada"], ["mail\n{to <PER_2>"], ["{to <PER_2>"]),
        (['"A\\u0064a"'], ["mail\n<PER_2>"], ['"<PER_2>"']),
        (["", "2"], ["mail", "mail\n2"], ["", "2"]),
    ],
)
def test_a_call_is_redacted_where_its_text_is_or_not_at_all(
    calls: list[str], redacted: list[str], sent: list[str] | None
) -> None:
    found_texts = ["Bob\nAda", "Ada", "\nAda", "mail", "Anna", "PER"]
    originals = {f"<PER_{place}>": text for place, text in enumerate(found_texts, 1)}
    originals["<AGE_1>"] = "1"
    found = message(tool_calls=[*map(_call, calls)])

    written = found.redacted(redacted, originals)

    if sent is None:
        assert written is None
    else:
        assert written is not None
        assert written == message(tool_calls=[*map(_call, sent)]).written([], str)


@pytest.mark.parametrize("given", [{"to": ["Ada", 1.50, True]}, '{"to": ["Ada", 1.50, true]}'])
def test_what_anthropic_calls_a_use_of_a_tool_is_redacted(given: Any) -> None:
    number = "1.5" if isinstance(given, dict) else "1.50"
    found = message(content=[{"type": "tool_use", "name": "mail", "input": given}])

    written = found.redacted([f"mail\nto\n<PER_1>\n{number}"], {"<PER_1>": "Ada"})

    assert written is not None
    assert "Ada" not in written.decode()
    assert ModelBody(written).calls() == [f"mail\nto\n<PER_1>\n{number}"]
