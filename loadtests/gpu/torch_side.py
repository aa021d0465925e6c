"""Measures in PyTorch the limits of the device and the peer's speed on it."""

import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from loadtests.gpu.device import UtilizationSampler
from loadtests.gpu.models import texts, write_tokenizer
from loadtests.gpu.plan import MAIN, Journal, Measurement, Options, SectionResult

_SIDE = 8192
_COPY_BYTES = 4 * 2**30
_PEER_BATCHES = (1, 32, 256)


def floor(options: Options) -> SectionResult:
    """Measure the matrix rate on random data, and the bandwidth of a copy."""
    import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    library: Any = torch
    device = _device(options)
    side = 256 if options.tiny else _SIDE
    precision = library.float32 if options.tiny else library.bfloat16
    left, right = (library.randn(side, side, device=device).to(precision) for _ in range(2))
    span = _median(options, lambda: library.matmul(left, right), library)
    count = (2**20 if options.tiny else _COPY_BYTES) // 4
    source = library.ones(count, device=device)
    target = library.empty_like(source)
    copy = _median(options, lambda: target.copy_(source), library)
    name = str(precision).removeprefix("torch.")
    lines = [
        Measurement(what=f"matrix rate, {name}, operations/s", rate=2 * side**3 / span),
        Measurement(what="bandwidth, bytes/s read and written", rate=2 * 4 * count / copy),
        Measurement(what=f"operations of one {MAIN} sequence", rate=operations(options)),
    ]
    return SectionResult(section="floor", status="done", lines=lines)


def operations(options: Options) -> float:
    """Return the operations of a forward pass over one sequence, as multiplications and sums."""
    shape, length = options.shape(MAIN), options.length
    dense = 4 * shape.hidden**2 + 2 * shape.hidden * shape.intermediate
    return float(shape.layers * 2 * length * (dense + 2 * length * shape.hidden))


def peer(options: Options) -> SectionResult:
    """Time a transformers pipeline of the same size on the same texts, in several batch sizes."""
    import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    import transformers  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    library: Any = torch
    pipeline = _pipeline(options, library, transformers)
    sizes = (1, 4) if options.tiny else _PEER_BATCHES
    journal = Journal(options, "peer")
    for size in sizes:
        known = list(islice(texts(options, length=options.length, seed=7), max(64, 8 * size)))
        pipeline(known[:size], batch_size=size)  # warm
        spans: list[float] = []
        with UtilizationSampler(options.device) as busy:
            until = time.perf_counter() + options.seconds
            while len(spans) < options.rounds or time.perf_counter() < until:
                started = time.perf_counter()
                pipeline(known, batch_size=size)
                spans.append((time.perf_counter() - started) / len(known))
        rate = 1 / statistics.median(spans)
        what = f"transformers pipeline, batches of {size}"
        tokens = rate * options.length
        journal.end(Measurement(what=what, rate=rate, tokens_per_second=tokens, busy=busy.share))
    return SectionResult(section="peer", status="done", lines=journal.lines)


def _pipeline(options: Options, library: Any, transformers: Any) -> Any:
    shape = options.shape(MAIN)
    config = transformers.BertConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=shape.positions,
        num_labels=2,
    )
    library.manual_seed(1)
    model = transformers.BertForSequenceClassification(config).eval()
    if options.provider != "cpu":
        model = model.half()
    path = options.work / "peer-tokenizer.json"
    write_tokenizer(path, shape.vocab)
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
    return "cpu" if options.provider == "cpu" else f"cuda:{options.device}"
