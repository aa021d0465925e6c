"""Everything under mixed load and changes, for seven seconds; `make soak` does it for half an hour.

Seven seconds tell nothing of wear: that is measured by the long run alone.
"""

from pathlib import Path

import pytest

from loadtests.soak.run import findings, soak

pytestmark = pytest.mark.e2e


def test_mixed_load_and_changes_cost_no_answer_and_no_bill(
    light_models: Path, tmp_path: Path
) -> None:
    result = soak(tmp_path, models=light_models, duration=7.0, every=0.5, look=1.0)

    assert list(findings(result, is_long=False)) == []
    assert result.answered > 100
    assert sum(result.changes.values()) >= 4
