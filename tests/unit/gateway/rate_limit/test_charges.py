"""What a request is charged."""

import msgspec

from sluicegate.gateway.rate_limit.base import Charge
from sluicegate.gateway.rate_limit.charges import (
    Estimate,
    WorkLimits,
    charges_for,
    work_charges_for,
)
from sluicegate.gateway.rate_limit.reservations import estimate
from sluicegate.gateway.types import KeyId, Principal, Rule, TenantId
from sluicegate.wire.guards import ClassifierDetector, EntityDetector, WordDetector
from sluicegate.wire.protocol import (
    MAX_WINDOWS,
    AnswerItem,
    AnswerParameters,
    EntitiesParameters,
    GuardParameters,
    RowLimits,
    Task,
)

MINUTE = Rule(name="minute", unit="requests", capacity=60, window=60.0)
ITEMS = Rule(name="items", unit="items", capacity=600, window=60.0)
SLOW = Rule(name="minute", unit="requests", capacity=6, window=60.0)
ROWS = Rule(name="rows", unit="rows", capacity=6, window=60.0)


def charges(principal: Principal, items: int = 3) -> list[tuple[str, str, int]]:
    return [
        (one.rule.name, one.bucket, one.amount)
        for one in charges_for(
            principal,
            items=items,
            default_tenant_rules=(MINUTE, ITEMS),
            default_key_rules=(),
        )
    ]


def test_a_quota_of_a_day_has_another_bucket_than_that_of_a_month() -> None:
    monthly = Rule(name="own", unit="tokens", capacity=9, period="month")
    daily = msgspec.structs.replace(monthly, period="day")

    buckets = [
        charges(Principal(tenant=TenantId("acme"), key=KeyId("k"), tenant_rules=(rule,)))[0][1]
        for rule in (monthly, daily)
    ]

    assert buckets == ["rl:{acme}:t:own", "rl:{acme}:t:own:day"]


def test_the_defaults_are_for_who_has_no_rules() -> None:
    principal = Principal(tenant=TenantId("acme"), key=KeyId("k1"))

    assert charges(principal) == [
        ("minute", "rl:{acme}:t:minute", 1),
        ("items", "rl:{acme}:t:items", 3),
    ]


def test_own_rules_replace_the_defaults_and_keys_have_buckets_of_their_own() -> None:
    principal = Principal(
        tenant=TenantId("acme"), key=KeyId("k1"), tenant_rules=(MINUTE,), key_rules=(ITEMS,)
    )

    assert charges(principal) == [
        ("minute", "rl:{acme}:t:minute", 1),
        ("items", "rl:{acme}:k:k1:items", 3),
    ]


def test_a_keys_rule_named_like_its_tenants_is_told_apart() -> None:
    principal = Principal(tenant=TenantId("acme"), key=KeyId("k1"), key_rules=(SLOW,))

    names = [name for name, _, _ in charges(principal)]

    assert names == ["minute", "items", "key_minute"]


def test_no_name_of_a_tenant_or_key_can_reach_anothers_bucket() -> None:
    principals = [
        Principal(tenant=TenantId(tenant), key=KeyId(key), key_rules=(SLOW,))
        for tenant, key in [("a", "b:c"), ("a:k:b", "c"), ("a}", "b"), ("a}:k:b", "c"), ("", "a")]
    ]

    buckets = [bucket for principal in principals for _, bucket, _ in charges(principal)]

    assert len(set(buckets)) == len(buckets)
    assert all(bucket.count("{") == bucket.count("}") == 1 for bucket in buckets)


def test_a_unit_of_work_is_shown_at_admission_and_charged_when_work_begins() -> None:
    principal = Principal(tenant=TenantId("acme"), key=KeyId("k1"), tenant_rules=(MINUTE, ROWS))

    most = Estimate(items=1, rows=7, tokens=99)

    _, held = work_charges_for(principal, WorkLimits(), model="m", most=most)

    assert [(name, amount) for name, _, amount in charges(principal)] == [
        ("minute", 1),
        ("rows", 0),
    ]
    assert [(one.rule, one.amount, one.is_reserved) for one in held] == [(ROWS, 7, True)]


def test_a_rule_of_a_model_is_met_by_its_requests_only() -> None:
    of_minilm = msgspec.structs.replace(MINUTE, model="minilm")
    principal = Principal(tenant=TenantId("acme"), key=KeyId("k1"), tenant_rules=(of_minilm,))

    met = {
        model: charges_for(
            principal,
            items=1,
            model=model,
            default_tenant_rules=(),
            default_key_rules=(),
        )
        for model in ("minilm", "other", "")
    }

    assert [len(met[model]) for model in ("minilm", "other", "")] == [1, 0, 0]


def test_no_tenant_shares_a_bucket_with_a_model() -> None:
    principal = Principal(tenant=TenantId("acme"), key=KeyId("k1"))
    most = Estimate(items=1, rows=1, tokens=1)
    (shared,), _ = work_charges_for(principal, WorkLimits(model=(MINUTE,)), model="a", most=most)
    tenants = [
        Principal(tenant=TenantId(name), key=KeyId("k"), tenant_rules=(MINUTE,))
        for name in ("/a", "a", "%2Fa")
    ]

    assert shared.bucket == "rl:{/a}:m:minute"
    assert all(bucket != shared.bucket for one in tenants for _, bucket, _ in charges(one))


def test_new_rules_of_a_tenant_count_from_the_next_request() -> None:
    before = Principal(tenant=TenantId("acme"), key=KeyId("k1"), tenant_rules=(MINUTE,))
    after = Principal(tenant=TenantId("acme"), key=KeyId("k1"), tenant_rules=(SLOW,))

    assert charges_with(before) == (Charge(rule=MINUTE, bucket="rl:{acme}:t:minute", amount=1),)
    assert charges_with(after) == (Charge(rule=SLOW, bucket="rl:{acme}:t:minute", amount=1),)


def charges_with(principal: Principal) -> tuple[Charge, ...]:
    return charges_for(principal, items=1, default_tenant_rules=(), default_key_rules=())


def test_tokens_that_are_only_shown_hold_no_rows_and_no_tokens() -> None:
    for task, expected in ((Task.TOKENIZE, (0, 0)), (Task.EMBED, (2, 10))):
        found = estimate(task, b"", [b"abc", b"abc"], limits=RowLimits(256))

        assert (found.items, found.rows, found.tokens) == (2, *expected)


def test_a_question_holds_a_row_for_each_window_that_its_context_may_have() -> None:
    given = msgspec.msgpack.encode(AnswerParameters(max_row_tokens=64, overlap=20))
    contexts = ("c" * 40, "c" * 400, "c" * 40_000)
    items = [
        msgspec.msgpack.encode(AnswerItem(question="q" * 20, context=text)) for text in contexts
    ]

    found = [estimate(Task.ANSWER, given, [item], limits=RowLimits(256)).rows for item in items]

    assert found == [1, 19, MAX_WINDOWS]


def test_the_windows_of_a_text_with_entities_are_reserved() -> None:
    plain = msgspec.msgpack.encode(EntitiesParameters())
    labelled = msgspec.msgpack.encode(EntitiesParameters(labels=["l" * 99, "m" * 98]))
    texts = ("t" * 20, "t" * 400, "t" * 40_000)

    found = [
        [
            estimate(
                Task.ENTITIES, given, [msgspec.msgpack.encode(text)], limits=RowLimits(256)
            ).rows
            for text in texts
        ]
        for given in (plain, labelled)
    ]

    assert found == [[1, 2, MAX_WINDOWS], [1, 20, MAX_WINDOWS]]


def test_the_rows_of_a_guard_are_those_of_its_detectors() -> None:
    word = WordDetector(name="w", words=("a",))
    mood = ClassifierDetector(name="m", model="mood", labels={"negative": 0.5})
    people = EntityDetector(name="p", model="names", labels={"l" * 40: 0.5})
    texts = [msgspec.msgpack.encode("t" * 396 + end) for end in ("t" * 4, "\U000e0041")]

    found = [
        estimate(
            Task.GUARD,
            msgspec.msgpack.encode(GuardParameters(detectors=detectors)),
            [text],
            limits=RowLimits(256),
        ).rows
        for detectors in ((word,), (mood,), (mood, mood), (people,))
        for text in texts
    ]
    labelled = msgspec.msgpack.encode(EntitiesParameters(labels=["l" * 40]))
    alone = estimate(Task.ENTITIES, labelled, texts[:1], limits=RowLimits(256)).rows

    # Models may read a text with tags four times: with and without tags, and each parted.
    assert found == [0, 0, 2, 8, 4, 16, alone, 4 * alone]


def test_words_of_one_letter_fill_a_window_before_its_tokens_do() -> None:
    given = msgspec.msgpack.encode(EntitiesParameters(labels=["l"]))
    marks, letters = (msgspec.msgpack.encode(text) for text in ("!" * 120, "t" * 120))

    found = [
        estimate(Task.ENTITIES, given, [text], limits=RowLimits(512, words)).rows
        for text in (marks, letters)
        for words in (0, 60)
    ]

    # GLiNER2 adds a full stop, so 121 words have four windows that share 30 of 60 words.
    assert found == [1, 4, 1, 1]
