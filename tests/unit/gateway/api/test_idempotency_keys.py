"""What `Idempotency-Key` may be, and what tells requests under one key apart."""

import pytest

from sluicegate.gateway.api.idempotent_requests import fingerprint, id_of, read_key
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.types import KeyId, Principal, TenantId

CALLER = Principal(tenant=TenantId("acme"), key=KeyId("key_1"))
NARROW = Principal(tenant=TenantId("acme"), key=KeyId("key_2"), models=frozenset({"a"}))
OTHER_TENANT = Principal(tenant=TenantId("globex"), key=KeyId("key_3"))
DAY = 86_400.0


def printed(
    principal: Principal = CALLER,
    *,
    method: str = "POST",
    target: bytes = b"/v1/embed",
    content_type: bytes = b"application/json",
    body: bytes = b"{}",
) -> bytes:
    return fingerprint(principal, method, target, content_type, body)


@pytest.mark.parametrize("value", [b"abc", b'"abc"', b" abc "])
def test_quotes_and_blanks_are_not_of_the_key(value: bytes) -> None:
    assert read_key([(b"host", b"x"), (b"idempotency-key", value)]) == b"abc"


@pytest.mark.parametrize("value", [b"", b'""', b"two words", b"\xc3\xa9", b"k" * 256])
def test_a_key_of_another_form_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        read_key([(b"idempotency-key", value)])


def test_two_keys_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        read_key([(b"idempotency-key", b"a"), (b"idempotency-key", b"a")])


def test_a_request_differs_by_method_target_type_body_and_the_models_of_its_key() -> None:
    prints = {
        printed(),
        printed(method="DELETE"),
        printed(target=b"/v1/classify"),
        printed(body=b"[]"),
        printed(content_type=b"text/plain"),
        printed(NARROW),
    }

    assert len(prints) == 6


def test_a_form_that_is_sent_again_has_another_boundary() -> None:
    def form(boundary: bytes) -> bytes:
        return printed(
            content_type=b"multipart/form-data; boundary=" + boundary,
            body=b"--%b\r\n\r\nfile\r\n--%b--" % (boundary, boundary),
        )

    assert form(b"one") == form(b"another")


@pytest.mark.parametrize("kind", [b"application/json", b"multipart/form-data"])
def test_no_boundary_hides_what_another_body_asks(kind: bytes) -> None:
    def asked(text: bytes) -> bytes:
        return printed(content_type=kind + b"; boundary=" + text, body=b'{"query":"--%b"}' % text)

    assert asked(b"a-cat") != asked(b"a-dog")


def test_a_form_with_other_parts_or_another_text_has_another_fingerprint() -> None:
    def form(boundary: bytes, body: bytes) -> bytes:
        return printed(content_type=b'multipart/form-data; boundary="%b"' % boundary, body=body)

    whole = form(b"b", b"--b\r\n\r\none\r\n--\r\n\r\ntwo\r\n--b--")

    assert form(b"b", b"--b\r\n\r\none\r\n--b\r\n\r\ntwo\r\n--b--") != whole
    assert form(b"b", b"--b\r\n\r\none\r\n--\r\n\r\nsix\r\n--b--") != whole
    assert form(b"c", b"--c\r\n\r\none\r\n--\r\n\r\ntwo\r\n--c--") == whole


def test_the_id_is_one_within_a_day_and_another_when_the_key_is_forgotten() -> None:
    first = id_of(CALLER, b"k", printed(), DAY * 20_000 + 5)

    assert id_of(CALLER, b"k", printed(), DAY * 20_000 + 80_000) == first
    assert id_of(CALLER, b"k", printed(), DAY * 20_001 + 5) != first
    assert id_of(CALLER, b"k", printed(body=b"[]"), DAY * 20_000 + 5) != first
    assert id_of(CALLER, b"l", printed(), DAY * 20_000 + 5) != first
    assert id_of(OTHER_TENANT, b"k", printed(), DAY * 20_000 + 5) != first
    # As long as others: the log's templates take no longer ones.
    assert len(first) == len("req_") + 26
