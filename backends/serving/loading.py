"""Loads the models of a repository's catalogue."""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from sluicegate.backends.algorithms.base import ModelAlgorithms
from sluicegate.backends.algorithms.hosts import AlgorithmHosts
from sluicegate.backends.algorithms.registry import build_served_model
from sluicegate.backends.algorithms.shadow import Mirror, mirrored_model
from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.coalescing import RowCache, RowCoalescer
from sluicegate.backends.batching.device import Device
from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.device_defaults import batch_bounds, batch_rows, batch_tokens
from sluicegate.backends.errors import BackendError, ExecutorDied, ModelProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import MeasuredCosts
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.opening import OpenExecutor
from sluicegate.backends.executors.pooling import PoolingExecutor
from sluicegate.backends.executors.upstream import UpstreamExecutor
from sluicegate.backends.pipelines.encoder import Encoder
from sluicegate.backends.pipelines.head import Head, read_head_weights
from sluicegate.backends.qualification.agreement import check_agreement
from sluicegate.backends.qualification.graph_choice import (
    QuickestGraph,
    choose_precision,
    find_quickest,
)
from sluicegate.backends.qualification.graph_trials import TryGraph
from sluicegate.backends.qualification.half_precision import HalfSubject
from sluicegate.backends.qualification.qualify import Candidate, Qualify
from sluicegate.backends.qualification.tuned import TunedBatching, read_tuned
from sluicegate.backends.repository.catalogue import Catalogue, base_name
from sluicegate.backends.repository.manifest import (
    ClassifierManifest,
    EncoderManifest,
    GraphManifest,
    HeadManifest,
    SpanManifest,
    SplitManifest,
    builds_on,
)
from sluicegate.backends.repository.model import Model
from sluicegate.backends.repository.output_layout import output_layout
from sluicegate.backends.serving.core import ModelSet
from sluicegate.backends.serving.load_records import (
    LoadRecord,
    LoadRecords,
)
from sluicegate.backends.serving.residency import DeclaredEncoder, RunningEncoder
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import Tracing
from sluicegate.backends.tokenization.timed_tokenizer import TimedTokenizer
from sluicegate.backends.tokenization.tokenizer import Tokenizer
from sluicegate.backends.types import JoinedWidth, OutputKind
from sluicegate.wire.plans import is_assigned

# Providers that run one batch per worker thread.
_HOST = ("cpu", "openvino", "paced")


class LoadingTools(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the settings, thread pools and functions that loading needs."""

    settings: BackendSettings
    tracing: Tracing
    clock: Callable[[], float]
    tokenizer_pool: ThreadPoolExecutor
    token_pool: ThreadPoolExecutor | None = None
    open_executor: OpenExecutor
    qualify: Qualify
    graph_trials: Callable[[], AbstractContextManager[TryGraph | None]] = nullcontext
    """Opens a process that tries device graphs; by default, this process tries them."""
    tokenizers: WeakValueDictionary[bytes, TimedTokenizer] = msgspec.field(
        default_factory=WeakValueDictionary
    )
    """The tokenizers in use, by content and options."""


class SharedResources(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the objects that all models share and that survive a reload."""

    device: Device
    cache: RowCache
    mirror: Mirror
    hosts: AlgorithmHosts
    records: LoadRecords


def make_shared(tools: LoadingTools) -> SharedResources:
    """Create the objects that the models of a process share."""
    device = Device(
        slots=_slots(tools.settings), clock=tools.clock, bulk_share=tools.settings.bulk_share
    )
    return SharedResources(
        device=device,
        cache=RowCache(max_bytes=tools.settings.row_cache_bytes),
        mirror=Mirror(clock=tools.clock, busy_share=device.busy_share),
        hosts=AlgorithmHosts(),
        records=LoadRecords(tools.settings),
    )


def load_models(
    catalogue: Catalogue,
    tools: LoadingTools,
    shared: SharedResources,
    known: Sequence[DeclaredEncoder] = (),
) -> ModelSet:
    """Load every model of a catalogue; reuse unchanged encoders of `known`.

    A model that cannot be loaded is reported in `problems`. No worker threads are started.

    If the memory of models is bounded, an encoder stays loaded only if it fits. An encoder that was
    loaded on this machine before is only declared.
    """
    loader = _Loader(catalogue, tools, shared, known)
    for model in catalogue.models.values():
        loader.load(model)
    # Mirror last, so that algorithms that build on a model use it without its shadow.
    for model in catalogue.models.values():
        loader.mirror(model)
    return ModelSet(
        served_models=loader.served_models,
        pipelines=loader.pipelines,
        encoders=list(loader.declared.values()),
        problems=loader.problems,
        blocked=frozenset(loader.blocked),
        needs=loader.needs,
    )


class _EncoderOpener:
    """Opens encoders.

    Declared encoders keep it for later loads, so it must not refer to any encoder: an encoder that
    was replaced would stay in memory.
    """

    def __init__(self, tools: LoadingTools, shared: SharedResources) -> None:
        self._tools = tools
        self._shared = shared
        self._max_bytes = tools.settings.model_memory_bytes
        self._quickest: dict[tuple[Path, str], QuickestGraph] = {}

    def load_first(
        self,
        model: Model,
        manifest: GraphManifest,
        pipeline: Encoder,
        record: LoadRecord | None,
    ) -> RunningEncoder:
        try:
            return self._open_encoder(model, manifest, pipeline, record)
        except BackendError as error:
            problem = f"{model.folder}: cannot load the model: {error}"
            if isinstance(error, ExecutorDied):
                self._shared.device.failure = problem
            raise ModelProblem(problem) from error

    def load_again(
        self,
        model: Model,
        manifest: GraphManifest,
        pipeline: Encoder,
        stamp: list[tuple[str, int, int]],
    ) -> RunningEncoder:
        """Load an encoder on demand; if it fails, the next reload qualifies it anew."""
        if model.stamp() != stamp:
            raise ModelProblem(f"{model.folder}: its files have changed; reload the models")
        try:
            record = self._shared.records.read(model)
            running = self.load_first(model, manifest, pipeline, record)
            pipeline.tokenizer.leave_thread()
        except BaseException:  # whatever failed, the next reload must find out
            self._shared.records.forget(model)
            raise
        return running

    def _open_encoder(
        self,
        model: Model,
        manifest: GraphManifest,
        pipeline: Encoder,
        record: LoadRecord | None,
    ) -> RunningEncoder:
        tools, settings = self._tools, self._tools.settings
        tokenizer = open_tokenizer(model, manifest, tools)
        source = graph_source(model, manifest)
        if record is not None:
            source = msgspec.structs.replace(
                source,
                path=source.path.with_name(record.file),
                precision=record.precision,
                costs=record.costs,
            )
            manifest = msgspec.structs.replace(manifest, profile=record.precision)
        elif not source.has_one_form:
            source = self._choose_form(source, model, manifest, tokenizer)
            manifest = msgspec.structs.replace(manifest, profile=source.precision)
        executor = tools.open_executor(source)
        is_well = executor.is_well if isinstance(executor, UpstreamExecutor) else lambda: True
        if source.upstream and manifest.graph:
            # Open the local graph only to compare its output with the upstream's.
            here = tools.open_executor(msgspec.structs.replace(source, upstream=None))
            check_agreement(_candidate(model, manifest, executor, tokenizer), executor, here)
        if isinstance(manifest, EncoderManifest) and manifest.pooling is not None:
            executor = PoolingExecutor(executor, manifest.pooling)
        shares_batches = executor.most_rows != 1 and tools.qualify(
            _candidate(model, manifest, executor, tokenizer)
        )
        if record is None and self._max_bytes and model.upstream is None:
            costs = MeasuredCosts(cost=executor.cost, wide=executor.wide_cost)
            record = LoadRecord(precision=source.precision, file=source.path.name, costs=costs)
            self._shared.records.write(model, record)
        found = read_tuned(model.folder, digest=model.digest, provider=executor.provider)
        batcher = Batcher(
            name=model.name,
            executor=executor,
            settings=settings,
            limits=BatchLimits(
                rows=_rows_per_batch(settings, found, executor, manifest) if shares_batches else 1,
                tokens=batch_tokens(settings),
                by_arrival=settings.batch_order == "arrival",
            ),
            worker_threads=None if source.upstream else _worker_threads(settings, found),
            # A batch on another server needs no slot of the local device.
            device=None if source.upstream else self._shared.device,
            clock=tools.clock,
            tracing=tools.tracing,
        )
        # With the name, because a model's owner can write a wrong record of its files' digests.
        digest = f"{model.name} {model.digest}"
        rows = RowCoalescer(digest=digest, cache=self._shared.cache, batcher=batcher)
        pipeline.open(tokenizer=tokenizer, rows=rows)
        return RunningEncoder(
            name=model.name,
            digest=model.digest,
            precision=source.precision,
            pipeline=pipeline,
            batcher=batcher,
            rows=rows,
            tokenization=tokenizer.durations.seen,
            portions=lambda: tokenizer.portions,
            upstream=model.upstream,
            is_well=is_well,
        )

    def _choose_form(
        self,
        source: GraphSource,
        model: Model,
        manifest: GraphManifest,
        tokenizer: TimedTokenizer,
    ) -> GraphSource:
        """Return the graph with the precision and the file in which this machine runs it."""
        settings, layout = self._tools.settings, tokenizer.layout
        precision = choose_precision(
            HalfSubject(
                folder=model.folder,
                digest=model.digest,
                manifest=manifest,
                source=source,
                encode=tokenizer.encode_now,
                trim=(layout.before, layout.added - layout.before),
            ),
            provider=settings.provider,
            allows_fp16=settings.gpu_fp16,
            allows_tf32=settings.gpu_tf32,
            open_executor=self._tools.open_executor,
            find=self._find_quickest,
        )
        source = msgspec.structs.replace(source, precision=precision)
        quickest = self._find_quickest(source)
        return msgspec.structs.replace(source, path=source.path.with_name(quickest.file))

    def _find_quickest(self, source: GraphSource) -> QuickestGraph:
        """Return the quickest device graph. Each graph is measured once per precision."""
        tools, key = self._tools, (source.path, source.precision)
        if (known := self._quickest.get(key)) is not None:
            return known
        with tools.graph_trials() as try_graph:
            self._quickest[key] = find_quickest(
                source,
                provider=tools.settings.provider,
                open_executor=tools.open_executor,
                bounds=batch_bounds(tools.settings),
                try_graph=try_graph,
            )
        return self._quickest[key]


class _Loader:
    def __init__(
        self,
        catalogue: Catalogue,
        tools: LoadingTools,
        shared: SharedResources,
        known: Sequence[DeclaredEncoder],
    ) -> None:
        self._catalogue = catalogue
        self._tools = tools
        self._shared = shared
        self._opener = _EncoderOpener(tools, shared)
        self._kept = {
            (encoder.name, encoder.digest): encoder for encoder in known if encoder.failure is None
        }
        # A new revision of a loaded model replaces it in memory.
        self._warm = {encoder.name for encoder in known if encoder.running is not None}
        self._max_bytes = tools.settings.model_memory_bytes
        self._pinned = _pinned(catalogue, tools.settings)
        self._loaded_bytes = sum(each.size_bytes for each in known if each.running is not None)
        self._encoders: dict[str, Encoder] = {}
        self.served_models: dict[str, ModelAlgorithms] = {}
        self.pipelines: dict[str, Encoder | Head] = {}
        self.declared: dict[str, DeclaredEncoder] = {}
        self.problems = dict(catalogue.problems)
        self.blocked = set(catalogue.blocked)
        self.needs: dict[str, frozenset[str]] = {}

    def load(self, model: Model) -> None:
        """Load one model. All models that it builds on must have been loaded before."""
        below = builds_on(model.manifest)
        if any(name in self.problems and base_name(name) != model.name for name in below):
            self.blocked.add(model.name)
        manifest, declared = model.manifest, None
        needs = frozenset({model.name}.union(*(self.needs.get(n, ()) for n in below)))
        try:
            self._check_memory(model, needs)
            if isinstance(manifest, GraphManifest):
                declared = self._find_encoder(model, manifest)
                # The precision in use is part of the model's identity and of cache keys.
                manifest = msgspec.structs.replace(manifest, profile=declared.precision)
                model = msgspec.structs.replace(model, manifest=manifest)
            served_model = build_served_model(model, self.served_models, self._shared.hosts)
            if declared is not None:
                self._add_encoder(declared)
            elif isinstance(manifest, HeadManifest):
                self._load_head(model, manifest, served_model)
        except ModelProblem as error:
            self.problems[model.name] = str(error)
            return
        except Exception as error:  # noqa: BLE001 - a broken model must not affect other models
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.problems[model.name] = f"{model.folder}: cannot load the model: {reason}"
            return
        self.served_models[model.name] = served_model
        self.needs[model.name] = needs

    def mirror(self, model: Model) -> None:
        """Send copies of a model's items to its shadow revision, unless that revision is broken."""
        served_model = self.served_models.get(model.name)
        if model.shadow is None or served_model is None:
            return
        name = f"{model.name}@{model.shadow.revision}"
        shadow = self.served_models.get(name)
        if shadow is None:
            return
        is_split = isinstance(model.manifest, SplitManifest)
        both = mirrored_model(
            served_model,
            shadow,
            plan=model.shadow,
            mirror=self._shared.mirror,
            revision="" if is_split else model.folder.name,
        )
        if both is None:
            self.problems[name] = f"it is the shadow of `{model.name}`, but they share no task"
        else:
            self.served_models[model.name] = both
            self.needs[model.name] |= self.needs[name]

    def _check_memory(self, model: Model, needs: frozenset[str]) -> None:
        """Refuse a model that could never be loaded beside the pinned models."""
        if not self._max_bytes:
            return
        names = [name for name in needs | self._pinned if name in self._catalogue.models]
        models = [self._catalogue.models[name] for name in names]
        size = sum(each.size_bytes for each in models if isinstance(each.manifest, GraphManifest))
        if size > self._max_bytes:
            raise ModelProblem(
                f"{model.folder}: the model needs {size} bytes, together with the models that it "
                "builds on and the pinned models; raise `SLUICEGATE_BACKEND_MODEL_MEMORY_BYTES`"
            )

    def _find_encoder(self, model: Model, manifest: GraphManifest) -> DeclaredEncoder:
        if (kept := self._kept.get((model.name, model.digest))) is not None:
            return kept
        is_bounded = self._max_bytes > 0 and model.upstream is None
        stays = not is_bounded or model.name in self._pinned
        stays_loaded = stays or model.name in self._warm
        pipeline = _pipeline(model, manifest)
        record = self._shared.records.read(model) if is_bounded else None
        declared = DeclaredEncoder(
            name=model.name,
            digest=model.digest,
            precision=record.precision if record is not None else manifest.profile,
            size_bytes=model.size_bytes,
            pipeline=pipeline,
            load=partial(self._opener.load_again, model, manifest, pipeline, model.stamp()),
            stays=stays,
        )
        if record is None or stays_loaded:
            running = self._load_now(model, manifest, pipeline, record)
            declared.precision = running.precision
            self._loaded_bytes += declared.size_bytes
            if stays_loaded or self._loaded_bytes <= self._max_bytes:
                declared.running = running
            else:
                self._loaded_bytes -= declared.size_bytes
                running.discard()
        return declared

    def _load_now(
        self, model: Model, manifest: GraphManifest, pipeline: Encoder, record: LoadRecord | None
    ) -> RunningEncoder:
        """Load an encoder; if a load by its record fails, forget the record and try without it."""
        try:
            return self._opener.load_first(model, manifest, pipeline, record)
        except Exception:  # a wrong record can fail in any way
            if record is None:
                raise
            self._shared.records.forget(model)
        return self._opener.load_first(model, manifest, pipeline, None)

    def _add_encoder(self, declared: DeclaredEncoder) -> None:
        self._encoders[declared.name] = declared.pipeline
        self.pipelines[declared.name] = declared.pipeline
        self.declared[declared.name] = declared

    def _load_head(
        self, model: Model, manifest: HeadManifest, served_model: ModelAlgorithms
    ) -> None:
        below = self._catalogue.models[manifest.encoder].manifest
        if not isinstance(below, EncoderManifest):
            raise ModelProblem(f"{model.folder}: `{manifest.encoder}` is not an encoder")
        if getattr(below.outputs, manifest.output) is None:
            raise ModelProblem(
                f"{model.folder}: `{manifest.encoder}` has no output `{manifest.output}`"
            )
        weights = read_head_weights(model, manifest, inputs=below.dimensions)
        encoder = self._encoders[served_model.encoder]
        self.pipelines[model.name] = Head(encoder=encoder, weights=weights)


def open_tokenizer(model: Model, manifest: GraphManifest, tools: LoadingTools) -> TimedTokenizer:
    """Return the tokenizer of a model, with the options of its manifest.

    Models with equal tokenizers share one in memory, as those with one base model often have.

    Raises:
        ModelProblem: the tokenizer's file is invalid.
    """
    path = model.file(manifest.tokenizer)
    options = {
        "truncate_to": manifest.max_tokens if manifest.truncate else None,
        "lowercase": manifest.lowercase,
        "token_types": manifest.token_types,
        "split_special_tokens": manifest.split_special_tokens,
    }
    try:
        key = repr(options).encode() + hashlib.blake2b(path.read_bytes()).digest()
    except OSError as error:
        raise ModelProblem(f"{path}: cannot be read as a tokenizer: {error}") from None
    if (known := tools.tokenizers.get(key)) is None:
        known = TimedTokenizer(
            path, pool=tools.tokenizer_pool, token_pool=tools.token_pool, **options
        )
        tools.tokenizers[key] = known
    return known.twin()


def graph_source(model: Model, manifest: GraphManifest) -> GraphSource:
    """Describe the graph of a model, for opening an executor."""
    joined = JoinedWidth()
    if isinstance(manifest, ClassifierManifest):
        kind = OutputKind.TOKENS if manifest.per_token else OutputKind.POOLED
        outputs, dimensions = {kind: manifest.output}, len(manifest.labels)
    elif isinstance(manifest, SpanManifest):
        outputs = {OutputKind.TOKENS: manifest.output}
        if manifest.classes is not None:
            outputs[OutputKind.POOLED] = manifest.classes.output
        if manifest.relations is not None:
            outputs[OutputKind.JOINED] = manifest.relations.output
            joined = JoinedWidth(fixed=manifest.relations.width)
        dimensions = manifest.max_width * manifest.max_labels
    else:
        named = {
            OutputKind.POOLED: manifest.outputs.pooled,
            OutputKind.TOKENS: manifest.outputs.tokens,
            OutputKind.JOINED: manifest.outputs.joined,
        }
        outputs = {kind: name for kind, name in named.items() if name is not None}
        dimensions, joined = manifest.dimensions, output_layout(manifest).joined
    return GraphSource(
        path=model.file(manifest.graph),
        outputs=outputs,
        dimensions=dimensions,
        max_tokens=manifest.max_tokens,
        digest=model.digest,
        precision=manifest.profile,
        upstream=model.upstream,
        joined=joined,
        has_adapters=isinstance(manifest, EncoderManifest) and bool(manifest.adapters),
    )


def _pipeline(model: Model, manifest: GraphManifest) -> Encoder:
    return Encoder(
        name=model.name,
        max_tokens=manifest.max_tokens,
        truncate=manifest.truncate,
        max_characters=manifest.max_characters,
        prompt=manifest.prompt if isinstance(manifest, EncoderManifest) else "",
    )


def _pinned(catalogue: Catalogue, settings: BackendSettings) -> frozenset[str]:
    """Return the names of pinned models, and of the models that they need."""
    pinned: set[str] = set()
    for name, model in reversed(catalogue.models.items()):
        if name in pinned or is_assigned(name, settings.pinned_models):
            shadow = [f"{name}@{model.shadow.revision}"] if model.shadow is not None else []
            pinned.update((name, *builds_on(model.manifest), *shadow))
    return frozenset(pinned)


def _rows_per_batch(
    settings: BackendSettings,
    found: TunedBatching | None,
    executor: ModelExecutor,
    manifest: GraphManifest,
) -> int:
    """Return the maximum rows of a batch."""
    own = manifest.max_batch_rows if settings.provider in _HOST else None
    rows = batch_rows(settings, found.rows if found is not None else own)
    return min(rows, executor.most_rows or rows)


def _worker_threads(settings: BackendSettings, found: TunedBatching | None) -> int | None:
    """Return the number of worker threads from the settings, or else the tuned number.

    `None` means that the executor chooses the number.
    """
    if settings.provider in _HOST and settings.threads:
        return settings.threads
    return found.threads if found is not None else None


def _candidate(
    model: Model,
    manifest: GraphManifest,
    executor: ModelExecutor,
    tokenizer: Tokenizer,
) -> Candidate:
    return Candidate(
        name=model.name,
        folder=model.folder,
        digest=model.digest,
        precision=manifest.profile,
        max_tokens=manifest.max_tokens,
        outputs=tuple(graph_source(model, manifest).outputs),
        executor=executor,
        encode=lambda texts: [encoding.ids for encoding in tokenizer.encode_now(texts)],
        tokenizer=model.file(manifest.tokenizer),
        last_token=tokenizer.last_token,
        is_remote=model.upstream is not None,
    )


def _slots(settings: BackendSettings) -> int:
    """Return how many batches may run on the device at a time."""
    return settings.worker_threads if settings.provider in _HOST else settings.gpu_runs
