"""Events from templates: the bytes that encoding them would give."""

import msgspec

from sluicegate.gateway.events.template import EventTemplate
from sluicegate.gateway.types import RequestId, RevisionUsage, Usage
from tests.support.events import make_event


def test_a_template_gives_what_encoding_gives() -> None:
    event = make_event(1, time=2**63, usage=Usage.of(hit=1, computed=2))
    event = msgspec.structs.replace(event, arms=(RevisionUsage(arm="2", hit=1),))
    other = msgspec.structs.replace(event, id=RequestId("req_" + "f" * 26), duration=0.25)
    other = msgspec.structs.replace(other, count=300)

    made = EventTemplate(event).payload(other.id, other.time, other.duration, other.count)

    assert made == msgspec.msgpack.encode(other)


def test_what_a_template_gives_is_an_event() -> None:
    event = make_event(1)

    made = EventTemplate(event).payload(RequestId("req_2"), 7, 0.5, 1)

    found = msgspec.msgpack.decode(made, type=type(event))
    assert found == msgspec.structs.replace(event, id=RequestId("req_2"), time=7, duration=0.5)
