"""The text form of protocol buffers, as far as configurations use it."""

import contextlib
import re

import pytest
from hypothesis import given, strategies as st

from sluicegate.backends.repository.text_proto import read_text_proto


def test_a_configuration_is_read_with_all_it_may_hold() -> None:
    found = read_text_proto(
        """
        # A comment; its `{` is none.
        name: "bert" 'base'   # strings go on
        max_batch_size: 8
        input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1, 0x10 ] }, { dims: -1 } ]
        output { name: "logits"; dims: [ 3 ] }
        output: < name: "other\\t\\"one\\"" >
        dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 1e2 }
        parameters { key: "ratio" value: { string_value: "0.5" } }
        optimization { priority: PRIORITY_MAX cuda { graphs: true rate: -.5f } }
        """
    )

    assert found["name"] == ["bertbase"]
    assert found["max_batch_size"] == [8]
    assert found["input"] == [
        {"name": ["input_ids"], "data_type": ["TYPE_INT64"], "dims": [-1, 16]},
        {"dims": [-1]},
    ]
    assert [output["name"] for output in found["output"]] == [["logits"], ['other\t"one"']]
    assert found["dynamic_batching"][0]["max_queue_delay_microseconds"] == [100.0]
    assert found["optimization"][0]["cuda"] == [{"graphs": [True], "rate": [-0.5]}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name", "line 1: `:` or `{` is missing"),
        ('name: "a"\n\nname 3', "line 3: `:` or `{` is missing"),
        ("input [ { name: 'a' }", "line 1: a value is missing"),
        ("input { name: 'a'", "line 1: `}` is missing"),
        ("input { }\n}", "line 2: `}` is not expected"),
        ('name: "open\nname: 3', 'line 1: `"` is not expected'),
        ("name: ]", "line 1: `]`"),
        ("a: '\\x'", "invalid escape"),
        ("a {" * 40, "nested too deep"),
        ("a: 3.4.5", "is not expected"),
    ],
)
def test_what_is_none_is_refused_at_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_text_proto(text)


@given(st.text(alphabet="ab:{}<>[]\"'\\ \n#,;0.-x1e"))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(read_text_proto(text), dict)
