"""Measures with PyTorch: the limits of the device, the models, and a transformers pipeline."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any  # torch and transformers may not be installed

from loadtests.gpu.models import bert_config, random_batch, texts, write_tokenizer
from loadtests.gpu.plan import FULL_BATCH, LARGE, MATRIX, SMALL, TOKENS, Options, alone
from loadtests.gpu.results import Measurement, Measuring, Report
from loadtests.gpu.timing import timed

_SIDE = 8192
_COPY_BYTES = 4 * 2**30


def figures(options: Options, section: str, _report: Report) -> Iterator[Measuring]:
    """Measure the device and the models with PyTorch, or a transformers pipeline for comparison.

    Raises:
        ModuleNotFoundError: a package is not installed.
    """
    import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    import transformers  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    measured = _Torch(options, torch, transformers)
    if section == "peer":
        measure = measured.pipeline()
        for rows in (32, FULL_BATCH):
            name = f"transformers pipeline, {SMALL}, batches of {rows}"
            yield name, partial(measure, rows)
        return
    yield MATRIX, measured.matrix_rate
    yield "bandwidth, bytes/s read and written", measured.bandwidth
    for model in TOKENS:
        yield alone("PyTorch", model), partial(measured.forward, model)


class _Torch:
    """Measures on the device of a run; each function imports the libraries that it needs."""

    def __init__(self, options: Options, torch: Any, transformers: Any) -> None:
        self._options, self._torch, self._transformers = options, torch, transformers
        self._is_cpu = options.provider == "cpu"
        self._device = "cpu" if self._is_cpu else "cuda:0"

    def matrix_rate(self) -> Measurement:
        """Measure multiplications and additions a second, by a product of random matrices."""
        side = 256 if self._options.tiny else _SIDE
        precision = self._torch.float32 if self._options.tiny else self._torch.bfloat16
        left, right = (
            self._torch.randn(side, side, device=self._device).to(precision) for _ in range(2)
        )
        return self._timed(lambda: self._torch.matmul(left, right), rows=2.0 * side**3)

    def bandwidth(self) -> Measurement:
        """Measure bytes read and written a second, by a copy."""
        count = (2**20 if self._options.tiny else _COPY_BYTES) // 4
        source = self._torch.ones(count, device=self._device)
        target = self._torch.empty_like(source)
        return self._timed(lambda: target.copy_(source), rows=2.0 * 4 * count)

    def forward(self, name: str) -> Measurement:
        """Measure a `transformers` model with a batch that is already in the device's memory."""
        shape = self._options.batch(name, FULL_BATCH)
        batch = random_batch(shape, self._options.shape(LARGE).vocab)
        given = {
            name: self._torch.from_numpy(ids).long().to(self._device) for name, ids in batch.items()
        }
        model = self._model("BertModel", name).to(self._device)

        def forward() -> None:
            with self._torch.inference_mode():  # the time of this thread only
                model(**given)

        return self._timed(forward, rows=shape.rows)

    def pipeline(self) -> Callable[[int], Measurement]:
        """Return a function that times a pipeline of the small model with a batch size."""
        vocabulary = self._options.shape(SMALL).vocab
        path = self._options.work / "peer-tokenizer.json"
        write_tokenizer(path, vocabulary)
        names = {f"{each}_token": f"[{each.upper()}]" for each in ("pad", "cls", "sep", "unk")}
        pipeline = self._transformers.pipeline(
            "text-classification",
            model=self._model("BertForSequenceClassification", SMALL),
            tokenizer=self._transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **names),
            device=self._device,
        )

        def measure(rows: int) -> Measurement:
            size, length = self._options.batch(SMALL, rows)
            count = max(64, 8 * size)
            known = list(islice(texts(vocabulary, length=length, seed=7), count))
            return self._timed(
                lambda: pipeline(known, batch_size=size), rows=count, tokens=count * length
            )

        return measure

    def _model(self, kind: str, model: str) -> Any:
        config = self._transformers.BertConfig.from_dict(bert_config(self._options.shape(model)))
        self._torch.manual_seed(1)
        made = getattr(self._transformers, kind)(config).eval()
        return made if self._is_cpu else made.half()

    def _timed(
        self, work: Callable[[], object], *, rows: float, tokens: int | None = None
    ) -> Measurement:
        """Time `work`, and synchronize the device after each run."""

        def run() -> None:
            work()
            if not self._is_cpu:
                self._torch.cuda.synchronize()

        return timed(self._options, [run], rows=rows, tokens=tokens)
