"""What cache keys know of the code."""

from pathlib import Path
from typing import Any

from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.registry import combined_version, describe
from sluicegate.backends.algorithms.reviewer import Reviewer
from sluicegate.backends.algorithms.zero_shot import ZeroShot
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.wire.protocol import Task
from testing.model_repository import write_repository


class Versioned(Algorithm):
    def __init__(self, version: int) -> None:
        self.version = version

    @override
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        raise NotImplementedError


class NewerClassify(Classify):
    version = Classify.version + 1


def test_a_model_s_version_grows_with_any_of_its_algorithms() -> None:
    def version(embed: int, rerank: int) -> int:
        return combined_version({Task.EMBED: Versioned(embed), Task.RERANK: Versioned(rerank)})

    assert version(1, 1) < version(1, 2) < version(2, 2)


def test_a_cascade_s_version_grows_with_those_of_the_algorithms_it_asks() -> None:
    topics = ZeroShot(model="topics")
    old, new = (
        kind(model="mood", labels=["negative"], function="softmax")
        for kind in (Classify, NewerClassify)
    )

    before = Reviewer(mood=old, topics=topics, intent=old).version
    after = Reviewer(mood=old, topics=topics, intent=new).version

    assert before < after


def test_every_model_states_a_version(tmp_path: Path) -> None:
    infos, _ = describe(read_catalogue(write_repository(tmp_path)))

    assert all(info.algorithm_version > 1 for info in infos)
