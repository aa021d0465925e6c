"""Checks that a device answers rightly: every form, mixed lengths, NaN, memory, two processes."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from backends.errors import OutOfMemory
from backends.executors.buckets import Shape
from backends.executors.cuda import explain
from backends.model_tools.graphs.checkpoint import build_checkpoint
from backends.model_tools.graphs.options import GraphOptions
from backends.model_tools.graphs.shapes import BertShape, weight_shapes
from backends.model_tools.graphs.weights import Weights, WeightsError, seeded_weights
from backends.types import FloatArray
from loadtests.gpu.models import Batch, batch_of
from loadtests.gpu.plan import (
    CANDIDATES,
    CHECKED,
    LARGE,
    OUT_OF_MEMORY,
    REFERENCE,
    SMALL,
    TWO_PROCESSES,
    Candidate,
    Figure,
    Options,
)
from loadtests.gpu.results import Journal, Measurement, SectionState
from loadtests.gpu.sessions import BOUNDS, BareSession, distance, run_on_cpu

# The runtime chooses a kernel by the width of a head and by the form of a graph, so two layers call
# the same kernels as twelve, in a fraction of the time.
LAYERS, VOCABULARY, POSITIONS = 2, 1000, 512
POISON = VOCABULARY - 1
"""A token whose vector is NaN. Rows with this token have no answer; the other rows do."""
_WORDS: Mapping[str, str] = MappingProxyType({"modernbert": "embeddings.tok_embeddings.weight"})
_Shapes = dict[str, tuple[int, ...]]


def hidden_size(options: Options, family: str) -> int:
    """Return the width of the vectors of a family's encoder."""
    return _size(options, family).hidden


def write_family(options: Options, family: str, form: GraphOptions, path: Path) -> None:
    """Write the graph of a family in a form.

    Raises:
        WeightsError: the family has no such form.
    """
    model = build_checkpoint(_config(options, family), _weights(options, family), options=form)
    path.write_bytes(model.SerializeToString())


def _size(options: Options, family: str) -> BertShape:
    """Return the size of a family's encoder: a head has 32 values in the small one, else 64."""
    preset = options.shape(family if family in (SMALL, LARGE) else LARGE)
    return msgspec.structs.replace(
        preset,
        layers=LAYERS,
        vocab=VOCABULARY,
        positions=min(POSITIONS, preset.positions) if options.tiny else POSITIONS,
    )


def _config(options: Options, family: str) -> dict[str, Any]:
    size = _size(options, family)
    common = {
        "num_hidden_layers": size.layers,
        "hidden_size": size.hidden,
        "num_attention_heads": size.heads,
        "intermediate_size": size.intermediate,
        "vocab_size": size.vocab,
        "max_position_embeddings": size.positions,
    }
    own: dict[str, dict[str, Any]] = {
        "modernbert": {
            "architectures": ["ModernBertModel"],
            "model_type": "modernbert",
            "local_attention": 16,
            "global_attn_every_n_layers": 2,
        },
        "deberta-v2": {
            "architectures": ["DebertaV2Model"],
            "model_type": "deberta-v2",
            "relative_attention": True,
            "position_buckets": 16,
            "max_relative_positions": size.positions,
            "pos_att_type": "c2p|p2c",
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "hidden_act": "gelu",
        },
    }
    bert = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "type_vocab_size": size.token_types,
        "layer_norm_eps": size.layer_norm_epsilon,
    }
    return common | own.get(family, bert)


@cache
def _weights(options: Options, family: str) -> Weights:
    size = _size(options, family)
    if family in (SMALL, LARGE):
        weights = dict(seeded_weights(size, seed=1))
    else:
        shapes = _modernbert(size) if family == "modernbert" else _deberta(size)
        random = np.random.default_rng(1)
        weights = {
            name: np.float32(name.endswith(("norm.weight", "LayerNorm.weight")))
            + np.float32(0.02) * random.standard_normal(shape, dtype=np.float32)
            for name, shape in shapes.items()
        }
    weights[_WORDS.get(family, "embeddings.word_embeddings.weight")][POISON] = np.nan
    return weights


def _modernbert(size: BertShape) -> _Shapes:
    hidden, wide = size.hidden, size.intermediate
    shapes: _Shapes = {
        "embeddings.tok_embeddings.weight": (size.vocab, hidden),
        "embeddings.norm.weight": (hidden,),
        "final_norm.weight": (hidden,),
    }
    for layer in range(size.layers):
        shapes |= {
            f"layers.{layer}.attn_norm.weight": (hidden,),
            f"layers.{layer}.attn.Wqkv.weight": (3 * hidden, hidden),
            f"layers.{layer}.attn.Wo.weight": (hidden, hidden),
            f"layers.{layer}.mlp_norm.weight": (hidden,),
            f"layers.{layer}.mlp.Wi.weight": (2 * wide, hidden),
            f"layers.{layer}.mlp.Wo.weight": (hidden, wide),
        }
    return shapes


def _deberta(size: BertShape) -> _Shapes:
    """Return BERT's weights with other names of projections, and the relative positions."""
    dropped = ("embeddings.position_embeddings.", "embeddings.token_type_embeddings.")
    shapes: _Shapes = {
        name.replace("self.query", "self.query_proj")
        .replace("self.key", "self.key_proj")
        .replace("self.value", "self.value_proj"): shape
        for name, shape in weight_shapes(size).items()
        if not name.startswith(dropped)
    }
    shapes["encoder.rel_embeddings.weight"] = (32, size.hidden)
    shapes |= {f"encoder.LayerNorm.{part}": (size.hidden,) for part in ("weight", "bias")}
    return shapes


_PLAIN = GraphOptions(attention="plain")
# An arena that holds the weights and a small batch, but not the large batch.
_SMALL_ARENA = 512 * 1024 * 1024
_LARGE_BATCH, _LARGE_BATCH_OF_A_CPU = Shape(2048, 512), Shape(64, 32)
_BESIDE_SECONDS = 2.0
_SAFE = next(each for each in CANDIDATES if each.name == "fp16-heads")


class _Case(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A batch, its answers in fp32 on a CPU, and which of its rows have one."""

    batch: Batch
    expected: FloatArray
    answered: "np.ndarray[tuple[int], np.dtype[np.bool_]]"


def check(options: Options) -> SectionState:
    """Compare each form with fp32 on the CPU, then run out of memory, then share the device."""
    journal = Journal(options)
    others = {OUT_OF_MEMORY: _run_out_of_memory, TWO_PROCESSES: _run_two_processes}
    journal.measure("check", lambda figure: others.get(figure.way, _compare)(options, figure))
    right = any(each.passed and each.error is not None for each in journal.report.figures)
    return SectionState(
        status="done" if right else "failed",
        reason="" if right else "no form gives the right answers",
    )


def _compare(options: Options, figure: Figure) -> Measurement:
    """Compare one form of one family, in every batch."""
    family = figure.preset
    candidate = next(each for each in CHECKED[family] if each.name == figure.way)
    try:
        path = _graph(options, family, candidate.form)
    except WeightsError as error:
        return Measurement(what=figure.name, note=f"there is no such form: {error}")
    device = candidate.device_options(options)
    session = BareSession(path, device, width=hidden_size(options, family))
    worst = max(_worst(session, case) for case in _cases(options, family))
    bound = BOUNDS[candidate.form.precision]
    note = "" if worst <= bound else f"further than {bound} from fp32 on the CPU"
    return Measurement(what=figure.name, error=worst, passed=worst <= bound, note=note)


def _worst(session: BareSession, case: _Case) -> float:
    run = session.bind(case.batch)
    # Twice: reused memory must not change the answer.
    return max(_apart(run(), case) for _ in range(2))


def _apart(found: FloatArray, case: _Case) -> float:
    """Return how far answers are apart; infinite where a row that has none was answered."""
    if np.isfinite(found[~case.answered]).all(axis=1).any():
        return float("inf")
    return distance(found[case.answered], case.expected[case.answered])


def _graph(options: Options, family: str, form: GraphOptions) -> Path:
    path = options.work / f"check-{family}-{form.precision}-{form.attention}.onnx"
    if not path.exists():
        temporary = path.with_suffix(".part")
        write_family(options, family, form, temporary)
        temporary.replace(path)
    return path


@cache
def _cases(options: Options, family: str) -> list[_Case]:
    path = _graph(options, family, _PLAIN)
    cases = []
    for batch in _batches(48 if options.tiny else 256):
        expected = run_on_cpu(path, batch)
        answered = ~(batch["input_ids"] == POISON).any(axis=1)
        cases.append(_Case(batch=batch, expected=expected, answered=answered))
    return cases


def _batches(longest: int) -> Iterator[Batch]:
    """Yield lengths as texts have, one length alone, one row, and a row with NaN among others.

    A batch of one length leaves all other length classes of a `gathered` graph empty.
    """
    random = np.random.default_rng(3)
    mixed = np.clip(random.lognormal(np.log(longest / 4), 0.8, 15), 3, longest).astype(np.int64)
    for lengths in ([longest, *mixed], [longest] * 8, [5] * 12, [7]):
        yield batch_of(np.array(lengths), vocabulary=POISON, random=random)
    poisoned = batch_of(np.array([9, longest, 9, 30, 9]), vocabulary=POISON, random=random)
    poisoned["input_ids"][2, 4] = POISON
    yield poisoned


def _run_out_of_memory(options: Options, figure: Figure) -> Measurement:
    """Ask for far more than the arena holds, and then for a small batch again."""
    is_bounded = options.provider != "cpu"
    path, case = _graph(options, SMALL, REFERENCE.form), _cases(options, SMALL)[0]
    device = msgspec.structs.replace(REFERENCE.device_options(options), memory_bytes=_SMALL_ARENA)
    session = BareSession(path, device, width=hidden_size(options, SMALL))
    shape = _LARGE_BATCH if is_bounded else _LARGE_BATCH_OF_A_CPU
    random = np.random.default_rng(5)
    large = batch_of(np.full(shape.rows, shape.length), vocabulary=VOCABULARY - 1, random=random)
    refused = _is_refused(session.bind(large))
    worst = _worst(session, case)
    right = worst <= BOUNDS["fp32"] and refused == is_bounded
    note = "a small batch is right afterwards" if is_bounded else "a CPU's memory has no bound"
    if refused != is_bounded:
        note = f"a batch of {shape.rows}x{shape.length} was{' ' if refused else ' not '}refused"
    return Measurement(what=figure.name, error=worst, passed=right, note=note)


def _is_refused(run: Callable[[], FloatArray]) -> bool:
    try:
        run()
    except Exception as error:  # ONNX Runtime's errors have no other base
        if isinstance(explain(error), OutOfMemory):
            return True
        raise
    return False


def _run_two_processes(options: Options, figure: Figure) -> Measurement:
    """Compare answers in two processes that share the device, at the same time."""
    candidate = REFERENCE if options.provider == "cpu" else _SAFE
    for form in (_PLAIN, candidate.form):
        _graph(options, SMALL, form)  # before both processes want it
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        found = [pool.submit(_compare_for_a_while, options, candidate) for _ in range(2)]
        results = [each.result() for each in found]
    worst, runs = max(worst for worst, _ in results), [runs for _, runs in results]
    passed = worst <= BOUNDS[candidate.form.precision]
    note = f"{candidate.name}, {runs[0]} and {runs[1]} runs"
    return Measurement(what=figure.name, error=worst, passed=passed, note=note)


def _compare_for_a_while(options: Options, candidate: Candidate) -> tuple[float, int]:
    """Run a batch again and again; return the worst distance, and how many runs there were."""
    case = _cases(options, SMALL)[0]
    path = _graph(options, SMALL, candidate.form)
    device = msgspec.structs.replace(candidate.device_options(options), memory_bytes=_SMALL_ARENA)
    run = BareSession(path, device, width=hidden_size(options, SMALL)).bind(case.batch)
    worst, runs = 0.0, 0
    until = time.perf_counter() + (0.1 if options.tiny else _BESIDE_SECONDS)
    while runs == 0 or time.perf_counter() < until:
        worst = max(worst, _apart(run(), case))
        runs += 1
    return worst, runs
