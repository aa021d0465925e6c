"""From a repository's catalogue to an engine that serves it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from backends.admission.admit import Admit, Candidate
from backends.admission.tuned import Tuned, read_tuned
from backends.algorithms.base import Endpoint
from backends.algorithms.registry import build_endpoint
from backends.api.engine import Engine, Identity, RunningEncoder
from backends.batching.batcher import Batcher, QueueLimits
from backends.batching.device import Device
from backends.batching.policy import BatchLimits
from backends.batching.shared import RowCache, SharedRows
from backends.errors import ModelProblem
from backends.executors.base import ModelExecutor
from backends.executors.graph import GraphSource
from backends.pipelines.ask import Pipeline
from backends.pipelines.encoder import Encoder
from backends.pipelines.head import Head, HeadWeights, read_head
from backends.repository.catalogue import Catalogue, Model
from backends.repository.manifest import EncoderManifest, HeadManifest
from backends.settings import BackendSettings
from backends.telemetry.spans import Tracing
from backends.tokenization.tokenizer import Tokenizer
from backends.types import OutputKind

_ROWS_PER_BATCH = 16

OpenExecutor = Callable[[GraphSource], ModelExecutor]


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What every model of a process shares."""

    settings: BackendSettings
    tracing: Tracing
    clock: Callable[[], float]
    tokenizer_pool: ThreadPoolExecutor
    open_executor: OpenExecutor
    admit: Admit


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """An engine and the batchers whose threads it needs started."""

    engine: Engine
    batchers: list[Batcher]
    problems: dict[str, str]


def load_engine(catalogue: Catalogue, tools: Tools) -> Loaded:
    """Load every model of a catalogue; one that cannot be loaded is a problem, no error."""
    loader = _Loader(catalogue, tools)
    for model in catalogue.models.values():
        loader.load(model)
    settings = tools.settings
    engine = Engine(
        identity=Identity(backend_id=settings.backend_id, region=settings.region),
        endpoints=loader.endpoints,
        pipelines=loader.pipelines,
        encoders=loader.running,
        problems=loader.problems,
        clock=tools.clock,
        device=loader.device,
    )
    batchers = [encoder.batcher for encoder in loader.running]
    return Loaded(engine=engine, batchers=batchers, problems=loader.problems)


class _Loader:
    def __init__(self, catalogue: Catalogue, tools: Tools) -> None:
        self._catalogue = catalogue
        self.device = Device(slots=_slots(tools.settings), clock=tools.clock)
        self._tools = tools
        self._cache = RowCache(max_bytes=tools.settings.row_cache_bytes)
        self._encoders: dict[str, Encoder] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.pipelines: dict[str, Pipeline] = {}
        self.running: list[RunningEncoder] = []
        self.problems = dict(catalogue.problems)

    def load(self, model: Model) -> None:
        """Load one model; those it builds on came before it."""
        try:
            endpoint = build_endpoint(model, self.endpoints)
            if isinstance(model.manifest, EncoderManifest):
                self._load_encoder(model, model.manifest)
            elif isinstance(model.manifest, HeadManifest):
                self._load_head(model, model.manifest, endpoint)
        except ModelProblem as error:
            self.problems[model.name] = str(error)
            return
        self.endpoints[model.name] = endpoint

    def _load_encoder(self, model: Model, manifest: EncoderManifest) -> None:
        tools, settings = self._tools, self._tools.settings
        tokenizer = Tokenizer(
            model.folder / manifest.tokenizer,
            pool=tools.tokenizer_pool,
            truncate_to=manifest.max_tokens if manifest.truncate else None,
        )
        named = {
            OutputKind.POOLED: manifest.outputs.pooled,
            OutputKind.TOKENS: manifest.outputs.tokens,
        }
        source = GraphSource(
            path=model.folder / manifest.graph,
            outputs={kind: name for kind, name in named.items() if name is not None},
            dimensions=manifest.dimensions,
            max_tokens=manifest.max_tokens,
            digest=model.digest,
        )
        executor = tools.open_executor(source)
        shares_batches = tools.admit(_candidate(model, manifest, source, executor, tokenizer))
        found = read_tuned(model.folder, digest=model.digest, provider=executor.provider)
        batcher = Batcher(
            name=model.name,
            executor=executor,
            cost=executor.cost,
            device=self.device,
            always_wide=settings.wide == "always",
            lanes=_lanes(settings, found),
            batch=BatchLimits(
                rows=_rows_per_batch(settings, found) if shares_batches else 1,
                tokens=settings.max_batch_tokens,
            ),
            queue=QueueLimits(rows=settings.max_queue_rows, tokens=settings.max_queue_tokens),
            clock=tools.clock,
            tracing=tools.tracing,
        )
        rows = SharedRows(digest=model.digest, cache=self._cache, batcher=batcher)
        encoder = Encoder(
            name=model.name,
            tokenizer=tokenizer,
            rows=rows,
            max_tokens=manifest.max_tokens,
            truncate=manifest.truncate,
        )
        self._encoders[model.name] = encoder
        self.pipelines[model.name] = encoder
        self.running.append(RunningEncoder(name=model.name, batcher=batcher, rows=rows))

    def _load_head(self, model: Model, manifest: HeadManifest, endpoint: Endpoint) -> None:
        below = self._catalogue.models[manifest.encoder].manifest
        if not isinstance(below, EncoderManifest):
            raise ModelProblem(f"{model.folder}: `{manifest.encoder}` is no encoder")
        if getattr(below.outputs, manifest.output) is None:
            raise ModelProblem(
                f"{model.folder}: `{manifest.encoder}` has no output `{manifest.output}`"
            )
        layers = read_head(
            model.folder / manifest.weights,
            inputs=below.dimensions,
            outputs=len(manifest.labels),
        )
        weights = HeadWeights(
            layers, activation=manifest.activation, normalize_input=manifest.normalize_input
        )
        encoder = self._encoders[endpoint.encoder]
        self.pipelines[model.name] = Head(encoder=encoder, weights=weights)


def _rows_per_batch(settings: BackendSettings, found: Tuned | None) -> int:
    """Return what the settings say, or else what was found best here."""
    return settings.max_batch_rows or (found.rows if found is not None else _ROWS_PER_BATCH)


def _lanes(settings: BackendSettings, found: Tuned | None) -> int | None:
    """Return what the settings say, or else what was found best here; `None` for all there are."""
    if settings.provider == "cpu" and settings.threads:
        return settings.threads
    return found.threads if found is not None else None


def _candidate(
    model: Model,
    manifest: EncoderManifest,
    source: GraphSource,
    executor: ModelExecutor,
    tokenizer: Tokenizer,
) -> Candidate:
    return Candidate(
        name=model.name,
        folder=model.folder,
        digest=model.digest,
        profile=manifest.profile,
        max_tokens=manifest.max_tokens,
        outputs=tuple(source.outputs),
        executor=executor,
        encode=lambda texts: [encoding.ids for encoding in tokenizer.encode_now(texts)],
    )


def _slots(settings: BackendSettings) -> int:
    """Return how many batches the device takes at a time."""
    return settings.lanes if settings.provider == "cpu" else settings.gpu_runs
