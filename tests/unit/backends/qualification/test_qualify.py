"""What depends on its neighbours runs alone; what depends on its padding is not served."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typing_extensions import override

from sluicegate.backends.errors import ModelFailed, ModelProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.qualification.certificate import FILE, certified_outputs
from sluicegate.backends.qualification.qualify import RECORD, Candidate, qualify
from sluicegate.backends.types import FloatArray, IntArray, OutputKind
from testing.model_repository import DIMENSIONS, make_tokenizer, toy_graph
from tests.support.executors import DummyExecutor, PacedExecutor
from tests.support.quantized import make_dynamic

Load = Callable[[bytes], OnnxExecutor]
OUTPUTS = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}


def encode(texts: Sequence[str]) -> list[IntArray]:
    tokenizer = make_tokenizer()
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [np.array(e.ids, dtype=np.int32) for e in tokenizer.encode_batch(list(texts))]


def candidate(folder: Path, executor: ModelExecutor, **changes: object) -> Candidate:
    given = Candidate(
        name="tiny",
        folder=folder,
        digest="d1",
        precision="fp32",
        max_tokens=32,
        outputs=tuple(OUTPUTS),
        executor=executor,
        encode=encode,
        tokenizer=folder / "tokenizer.json",
        last_token=("z", 60),
    )
    return msgspec.structs.replace(given, **changes)


def load(folder: Path, graph: bytes) -> OnnxExecutor:
    path = folder / "model.onnx"
    path.write_bytes(graph)
    return OnnxExecutor(
        GraphSource(path=path, outputs=OUTPUTS, dimensions=DIMENSIONS), worker_threads=1
    )


class MasklessExecutor(DummyExecutor):
    """Takes the mean over padding too."""

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        return super().run(msgspec.structs.replace(batch, mask=np.ones_like(batch.mask)))


def test_rows_of_an_fp32_graph_share_batches(tmp_path: Path) -> None:
    assert qualify(candidate(tmp_path, load(tmp_path, toy_graph())))


def test_rows_of_a_dynamic_int8_graph_run_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = make_dynamic(toy_graph())

    with caplog.at_level(logging.WARNING):
        shares = qualify(candidate(tmp_path, load(tmp_path, graph), precision="int8"))

    assert not shares
    assert "run alone" in caplog.text


def test_a_graph_that_reads_no_mask_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelProblem, match="`attention_mask`"):
        qualify(candidate(tmp_path, MasklessExecutor()))


def test_a_graph_that_cannot_run_a_batch_is_refused(tmp_path: Path) -> None:
    def refuse(rows: int, _: int) -> None:
        if rows > 1:
            raise ModelFailed("only one row at a time")

    with pytest.raises(ModelProblem, match="a trial batch failed: only one row"):
        qualify(candidate(tmp_path, PacedExecutor(refuse)))


def test_a_model_is_measured_once(tmp_path: Path) -> None:
    first, second = DummyExecutor(), DummyExecutor()

    qualify(candidate(tmp_path, first))
    qualify(candidate(tmp_path, second))

    assert first.shapes
    assert not second.shapes


def test_another_digest_is_measured_again(tmp_path: Path) -> None:
    executor = DummyExecutor()
    qualify(candidate(tmp_path, DummyExecutor()))

    qualify(candidate(tmp_path, executor, digest="d2"))

    assert executor.shapes


def test_a_record_nobody_can_read_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text("half a rec")

    assert qualify(candidate(tmp_path, DummyExecutor()))
    assert b"mates" in (tmp_path / RECORD).read_bytes()


def test_a_folder_that_cannot_be_written_keeps_no_model_from_service(tmp_path: Path) -> None:
    missing = tmp_path / "gone"

    assert qualify(candidate(missing, DummyExecutor()))


def test_a_variant_that_answers_otherwise_than_where_it_was_judged_is_refused(
    tmp_path: Path,
) -> None:
    """As an int8 graph does where the CPU lacks the instructions it was judged with."""
    executor = DummyExecutor()
    expected = np.array(certified_outputs(executor, encode))
    certificate = tmp_path / FILE
    certificate.write_bytes(msgspec.json.encode({"expected": expected.tolist()}))
    assert qualify(candidate(tmp_path, executor))

    certificate.write_bytes(msgspec.json.encode({"expected": (-expected).tolist()}))

    with pytest.raises(ModelProblem, match="cosine -1"):
        qualify(candidate(tmp_path, executor, digest="d2"))


def test_a_certificate_nobody_can_read_is_no_certificate(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}")

    with pytest.raises(ModelProblem, match=FILE):
        qualify(candidate(tmp_path, DummyExecutor()))
