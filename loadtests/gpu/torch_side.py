"""Measures with PyTorch the limits of the device, the models alone, and a peer."""

import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from loadtests.gpu.device import UtilizationSampler
from loadtests.gpu.models import random_batch, texts, write_tokenizer
from loadtests.gpu.plan import ROUNDS, SMALL, Figure, Options
from loadtests.gpu.results import Journal, Measurement, SectionState

_SIDE = 8192
_COPY_BYTES = 4 * 2**30


def pytorch(options: Options) -> SectionState:
    """Measure what the device can do, and how fast PyTorch runs the models on it.

    Raises:
        ModuleNotFoundError: a package is not installed.
    """
    import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    library: Any = torch
    ways = {"matrix": _matrix_rate, "bandwidth": _bandwidth}

    def measure(figure: Figure) -> Measurement:
        with UtilizationSampler() as busy:
            rate = ways.get(figure.way, _forward_rate)(options, library, figure)
        return Measurement(what=figure.name, rate=rate, busy=busy.share)

    return Journal(options).measure("pytorch", measure)


def _matrix_rate(options: Options, library: Any, _: Figure) -> float:
    """Return multiplications and sums a second, on random data."""
    side = 256 if options.tiny else _SIDE
    precision = library.float32 if options.tiny else library.bfloat16
    device = _device(options)
    left, right = (library.randn(side, side, device=device).to(precision) for _ in range(2))
    return 2 * side**3 / _median(options, lambda: library.matmul(left, right), library)


def _bandwidth(options: Options, library: Any, _: Figure) -> float:
    """Return bytes read and written a second, by a copy."""
    count = (2**20 if options.tiny else _COPY_BYTES) // 4
    source = library.ones(count, device=_device(options))
    target = library.empty_like(source)
    return 2 * 4 * count / _median(options, lambda: target.copy_(source), library)


def _forward_rate(options: Options, library: Any, figure: Figure) -> float:
    """Return the rows a second of a `transformers` model alone, its batch on the device."""
    import transformers  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    batch = random_batch(options, options.batch(figure), seed=4)
    device = _device(options)
    given = {name: library.from_numpy(ids).long().to(device) for name, ids in batch.items()}
    library.manual_seed(1)
    model = transformers.BertModel(_config(options, transformers, figure.preset)).eval().to(device)
    if options.provider != "cpu":
        model = model.half()
    with library.inference_mode():
        span = _median(options, lambda: model(**given), library)
    return float(batch["input_ids"].shape[0] / span)


def peer(options: Options) -> SectionState:
    """Time a transformers pipeline of the same size on the same texts, in several batch sizes.

    Raises:
        ModuleNotFoundError: a package is not installed.
    """
    import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    import transformers  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    library: Any = torch
    pipeline = _pipeline(options, library, transformers)

    def measure(figure: Figure) -> Measurement:
        size, length = options.batch(figure)
        known = list(islice(texts(options, length=length, seed=7), max(64, 8 * size)))
        pipeline(known[:size], batch_size=size)  # warm
        spans: list[float] = []
        with UtilizationSampler() as busy:
            until = time.perf_counter() + options.seconds
            while len(spans) < ROUNDS or time.perf_counter() < until:
                started = time.perf_counter()
                pipeline(known, batch_size=size)
                spans.append((time.perf_counter() - started) / len(known))
        rate = 1 / statistics.median(spans)
        return Measurement(
            what=figure.name, rate=rate, tokens_per_second=rate * length, busy=busy.share
        )

    return Journal(options).measure("peer", measure)


def _config(options: Options, transformers: Any, preset: str) -> Any:
    shape = options.shape(preset)
    return transformers.BertConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=shape.positions,
        num_labels=2,
    )


def _pipeline(options: Options, library: Any, transformers: Any) -> Any:
    config = _config(options, transformers, SMALL)
    library.manual_seed(1)
    model = transformers.BertForSequenceClassification(config).eval()
    if options.provider != "cpu":
        model = model.half()
    path = options.work / "peer-tokenizer.json"
    write_tokenizer(path, config.vocab_size)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        pad_token="[PAD]",  # noqa: S106 - a piece
        cls_token="[CLS]",  # noqa: S106
        sep_token="[SEP]",  # noqa: S106
        unk_token="[UNK]",  # noqa: S106
    )
    return transformers.pipeline(
        "text-classification", model=model, tokenizer=tokenizer, device=_device(options)
    )


def _median(options: Options, work: Callable[[], object], library: Any) -> float:
    """Return the median time of `work`, the device synchronised around each."""
    synchronise = (lambda: None) if options.provider == "cpu" else library.cuda.synchronize
    spans = []
    for _ in range(3 + 10):
        synchronise()
        started = time.perf_counter()
        work()
        synchronise()
        spans.append(time.perf_counter() - started)
    return statistics.median(spans[3:])


def _device(options: Options) -> str:
    return "cpu" if options.provider == "cpu" else "cuda:0"
