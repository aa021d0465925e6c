"""Tests what is judged at the end of a simulated run."""

from collections.abc import Sequence

import msgspec

from testing.simulation.world.callers import Attempt
from testing.simulation.world.invariants import (
    STOP,
    Disturbance,
    billing,
    noticeable,
    purged_hits,
    request_logs,
    slow_stops,
    unclear_errors,
)
from tests.unit.testing.simulation.world.test_monitor import attempt, fault

LINE = msgspec.json.encode({"id": "req_1", "tenant": "acme"}) + b"\n"


def logged(content: bytes, *faults: Disturbance) -> list[str]:
    """Return what is wrong with the log of a region with one answer."""
    return list(request_logs({"eu": content}, [attempt()], faults, ["sk-acme"]))


def test_each_answer_has_a_line() -> None:
    assert not logged(LINE)
    assert logged(b"") == ["req_1 is not in the request log of eu"]
    assert logged(LINE + LINE) == ["req_1 is in the request log of eu twice"]


def test_faults_excuse_what_they_explain() -> None:
    assert not logged(LINE + LINE, fault("kill", "eu-gateway"))
    assert logged(b"", fault("kill", "eu-gateway"))
    assert not logged(b"\0{", fault("crash", "eu-gateway"))
    assert logged(b"", fault("crash", "eu-gateway", begun=-3.0, ended=-1.0))
    assert logged(LINE + b"\0{", fault("kill", "eu-gateway"))
    assert logged(LINE + LINE, fault(STOP, "eu-gateway"), fault("crash", "us-gateway"))


def test_a_log_has_no_text_and_no_secret() -> None:
    assert logged(LINE.replace(b"acme", b"sk-acme")) == ["the request log of eu has a secret"]
    assert logged(LINE.replace(b"acme", b"good film")) == ["the request log of eu has a text"]


def test_a_stop_ends_in_time_unless_something_else_is_wrong() -> None:
    stop = fault(STOP, "eu-backend", begun=1.0, ended=40.0)

    assert list(slow_stops([stop])) == ["eu-backend was away for 39.0 s after its stop"]
    assert not list(slow_stops([stop, fault("pause", "eu-backend", begun=3.0, ended=9.0)]))
    assert not list(slow_stops([fault(STOP, "eu-backend", begun=1.0, ended=9.0)]))


def test_every_error_says_what_failed() -> None:
    unclear = attempt(status=500, answer={"code": "internal_error"})
    clear = attempt(status=500, answer={"code": "model_failed"})

    assert not list(unclear_errors([clear]))
    assert list(unclear_errors([unclear])) == ["eu-0 said internal_error to req_1"]


def test_a_power_cut_destroys_what_a_broken_disk_did_not_sync() -> None:
    answered = attempt(sent=4.0, came=4.1)
    cut = fault("crash", "eu-gateway", begun=7.0, ended=8.0)
    broken = fault("broken", "eu-gateway", begun=3.0, ended=6.5)

    assert list(billing([answered], [], [cut]))
    assert not list(billing([answered], [], [cut, broken]))
    assert list(billing([answered], [], [broken]))
    assert list(billing([answered], [], [cut, fault("broken", "us-gateway", begun=3.0)]))
    assert list(billing([answered], [], [cut, fault("broken", "eu-gateway", ended=5.0)]))


HIT = {"usage": {"hit": 1, "computed": 0, "collapsed": 0}}
COMPUTED = {"usage": {"hit": 0, "computed": 1, "collapsed": 0}}
OLD = attempt(answer=COMPUTED)
AFTER = attempt(answer=HIT, sent=4.0, came=4.1)


def purged(*attempts: Attempt, faults: Sequence[Disturbance] = (), model: str = "") -> list[str]:
    """Return the hits on old results after a purge that lasted from 2 s to 3 s."""
    wanted = {"model": model} if model else {"tenant": "acme"}
    return list(purged_hits(attempts, wanted, 2.0, 3.0, faults))


def test_a_hit_after_a_purge_is_on_a_newer_result() -> None:
    newer = attempt(answer=COMPUTED, sent=1.9, came=2.1)

    assert len(purged(OLD, AFTER)) == 1
    assert len(purged(OLD, AFTER, model="tiny")) == 1
    assert not purged(OLD, AFTER, model="other")
    assert not purged(OLD, newer, AFTER)
    assert not purged(OLD, attempt(answer=HIT, sent=2.9, came=3.1))
    assert not purged(OLD, attempt(answer=HIT, sent=4.0, came=4.1, idempotency_key="again"))
    assert not purged(OLD, attempt(answer=COMPUTED, sent=4.0, came=4.1))


def test_what_stores_nothing_is_no_newer_result() -> None:
    hit_before = attempt(answer=HIT, sent=3.5, came=3.6)
    elsewhere = attempt(answer=COMPUTED, sent=3.5, came=3.6, worker="us-0")
    unstored = attempt(answer=COMPUTED, sent=3.5, came=3.6, cache_control="no-store")
    later = attempt(answer=COMPUTED, sent=4.2, came=4.3)

    assert len(purged(OLD, hit_before, AFTER)) == 2
    assert purged(OLD, elsewhere, AFTER)
    assert purged(OLD, unstored, AFTER)
    assert purged(OLD, later, AFTER)
    assert not purged(OLD, attempt(status=0, sent=3.5, came=3.6), AFTER)


def test_callers_notice_an_outage_of_the_ledger_only_while_a_worker_starts() -> None:
    first = fault("ledger", "eu-gateway", begun=14.0, ended=20.0)
    second = fault("ledger-commit", "eu-gateway", begun=19.0, ended=40.0)
    elsewhere = fault("crash", "us-gateway", begun=15.0, ended=16.0)
    others = [
        fault("kill", "eu-gateway/billing", "eu-gateway", begun=15.0, ended=15.0),
        fault(STOP, "eu-gateway/worker-0", "eu-gateway", begun=15.0, ended=16.0),
    ]
    death = fault("kill", "eu-gateway/worker-0", "eu-gateway", begun=15.0, ended=15.0)

    assert noticeable([first, elsewhere, *others, second]) == [elsewhere, others[0]]
    assert noticeable([first, death, second]) == [first, death, second]


def test_a_worker_that_was_cut_off_may_not_know_a_purge() -> None:
    cut, loss = fault("cut", "eu-gateway", "eu-redis"), fault("lose", "eu-redis", begun=3.5)

    assert not purged(OLD, AFTER, faults=[cut])
    assert purged(OLD, AFTER, faults=[fault("cut", "us-gateway", "us-redis")])
    assert purged(OLD, AFTER, faults=[fault("cut", "callers", "eu-gateway")])
    assert not purged(OLD, AFTER, faults=[fault("busy", "eu-redis")])
    assert purged(OLD, AFTER, faults=[fault("jump", "eu-redis")])
    assert purged(OLD, AFTER, faults=[loss])
    assert not purged(OLD, AFTER, faults=[fault("lose", "eu-redis", begun=2.5)])
    assert not purged(OLD, AFTER, faults=[loss, fault("kill", "eu-gateway/worker-0")])
    assert purged(OLD, AFTER, faults=[loss, fault("kill", "eu-gateway/shipper")])
