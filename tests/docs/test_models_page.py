"""The models page is held against the code."""

import re
from pathlib import Path

import msgspec
import numpy as np
import yaml

from sluicegate.backends.pipelines.head import read_head
from sluicegate.backends.repository.manifest import HeadManifest

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_head_of_the_page_is_one(tmp_path: Path) -> None:
    found = re.search(r"## A head\n\n```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    first, second = np.zeros((8, 4)), np.zeros((4, 2))

    head = msgspec.convert(yaml.safe_load(found[1]), HeadManifest)
    np.savez(tmp_path / head.weights, w0=first, b0=first[0], w1=second, b1=second[0])

    layers = read_head(tmp_path / head.weights, inputs=8, outputs=len(head.labels))
    assert len(layers) == 2
