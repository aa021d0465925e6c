"""As few products as need be stay in float, the most harmful for their size first."""

import pytest

from sluicegate.backends.model_tools.tuning.variant_maker import find_sensitive

SIZES = {"small": 1, "middle": 2, "large": 8, "harmless": 4}
HARM = {"small": 3.0, "middle": 4.0, "large": 4.0, "harmless": 0.0}


def flips(kept: frozenset[str]) -> float:
    return sum(harm for name, harm in HARM.items() if name not in kept) / 100


@pytest.mark.parametrize(
    ("bound", "kept"),
    [
        (0.11, set()),
        (0.08, {"small"}),
        (0.04, {"small", "middle"}),
        (0.0, {"small", "middle", "large"}),
    ],
)
def test_just_enough_products_are_kept(bound: float, kept: set[str]) -> None:
    found = find_sensitive(SIZES, flips=flips, damage=HARM.__getitem__, bound=bound)

    assert found == kept


def test_damage_is_not_asked_when_nothing_need_be_kept() -> None:
    def damage(name: str) -> float:
        raise AssertionError(name)

    assert not find_sensitive(SIZES, flips=lambda _: 0.0, damage=damage, bound=0.0)


def test_what_never_gets_good_stays_in_float_altogether() -> None:
    found = find_sensitive(SIZES, flips=lambda _: 1.0, damage=HARM.__getitem__, bound=0.01)

    assert found == SIZES.keys()
