"""Describes the models of MODEL_PATH and MODELS by their files and specs, and loads them with the current tuning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.conversion import (
    ALIAS,
    SIZE_BYTES,
    converted_model,
    describe_embedding_model,
    is_installed,
)
from services.inference.adapters.llama.cache import MAX_SEQUENCES, EngineOptions
from services.inference.adapters.llama.embedder import (
    EmbedderOptions,
    LlamaCppCrossEncoder,
    LlamaCppEmbedder,
    embedder_kind,
)
from services.inference.adapters.model_file import check_digest, describe_model, digest_of, draft_model_bytes
from services.inference.app.models import ModelSpec, ServedModel
from services.inference.app.pooling import EmbedderLoop, Embedding, PairScoring
from services.inference.app.prefix_storage import ModelStorage
from services.inference.core import pairs
from services.inference.core.tuning import Tuning
from services.inference.ports import TextEmbedder
from services.inference.settings import BUNDLED, InferenceSettings
from services.inference.wiring.text_generation import AllWorkers, load_generation

IDLE_SEQUENCES = 96  # sequence ids for finished sequences with tokens that can still be shared


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        given: The configured file, which may have an expected hash.
        loaded: The file that the engine loads, which is the given file or a conversion of it.
        projector: The file of the image encoder, if the model has an image encoder.
        draft: The file of the draft model, if the model has a draft model.
    """

    given: Path
    loaded: Path
    projector: Path | None = None
    draft: Path | None = None

    @property
    def from_settings(self) -> list[Path]:
        """The configured files of the model."""
        return [path for path in (self.given, self.projector, self.draft) if path is not None]

    @property
    def size_bytes(self) -> int:
        """The total number of bytes in the loaded files.

        Raises PreconditionFailed (CONFIG_NO_ENGINE) if the file of the draft model is missing.
        """
        size_bytes = self.loaded.stat().st_size
        if self.projector is not None:
            size_bytes += self.projector.stat().st_size
        if self.draft is not None:
            size_bytes += draft_model_bytes(self.draft)
        return size_bytes


def files_of(settings: InferenceSettings, own: Path | None) -> dict[str, ModelFiles]:
    """Return the files by alias: first `own`, the file of MODEL_PATH, then the files of MODELS in order.

    Raises InvalidRequest if MODEL_SHA256 names another alias.
    """
    files: dict[str, ModelFiles] = {}
    if own is not None:
        projector, draft = (
            Path(path) if path else None for path in (settings.projector_path, settings.draft_model_path)
        )
        files[settings.model_name or own.stem] = ModelFiles(own, own, projector, draft)
    files |= {alias: ModelFiles(Path(path), Path(path)) for alias, path in settings.models.items()}
    if unknown := sorted(set(settings.model_sha256) - set(files)):
        aliases = ", ".join(map(repr, files))
        raise InvalidRequest(f"MODEL_SHA256 names {', '.join(map(repr, unknown))}: the models are {aliases}")
    return files


async def load_pooled(
    path: Path, info: ModelInfo, settings: InferenceSettings, options: EmbedderOptions
) -> Embedding | PairScoring:
    """Load an embedding model or a cross-encoder with a separate batch loop."""
    if pairs.CAPABILITY in info.capabilities:
        cross_encoder = await asyncio.to_thread(LlamaCppCrossEncoder, path, info, options)
        return PairScoring(_loop_of(cross_encoder, settings), cross_encoder.pair_layout)
    embedder = await asyncio.to_thread(LlamaCppEmbedder, path, info, options)
    return Embedding(_loop_of(embedder, settings))


def _loop_of(embedder: TextEmbedder, settings: InferenceSettings) -> EmbedderLoop:
    return EmbedderLoop(embedder, queue_capacity=settings.queue_capacity, clock=SystemClock())


class ModelLoader:
    """Loads models by their specs.

    Args:
        settings: The settings of the models.
        own: The file of MODEL_PATH, or None if there is no such model.
        workers: The workers that try constraints and decode images.
        storage_of: Returns the prefix storage of a model by the digest of its files. If None, no prefixes are stored.
        convert: Returns the file to load for a text model in `own`, whose hash was checked. If None, `own` itself is
            loaded.

    Attributes:
        specs: The specs of the models of MODEL_PATH and MODELS, in this order.
        own_file: The file that the engine loads for MODEL_PATH, or None if there is no such model.
        bundled: The spec of the bundled embedding model, if it is served.
    """

    def __init__(
        self,
        settings: InferenceSettings,
        own: Path | None,
        workers: AllWorkers,
        storage_of: Callable[[str], ModelStorage] | None = None,
        convert: Callable[[Path], Path] | None = None,
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._storage_of = storage_of
        self._options = EngineOptions()
        self._files = files_of(settings, own)
        for alias in self._files:
            self._check_digest(alias)
        self.own_file = own
        self.specs = [self._describe(alias) for alias in self._files]
        if own is not None and convert is not None and not embedder_kind(self.specs[0].info):
            self.own_file = convert(own)
            alias = self.specs[0].info.name
            self._files[alias] = replace(self._files[alias], loaded=self.own_file)
            self.specs[0] = replace(self.specs[0], memory_bytes=self._files[alias].size_bytes)
        self.bundled: list[ModelSpec] = []
        aliases = {*self._files, *settings.remotes, *settings.routes}
        if settings.embedding_model == BUNDLED and ALIAS not in aliases and is_installed():
            info = describe_embedding_model(context_tokens=settings.context_tokens)
            self.bundled.append(ModelSpec(info, SIZE_BYTES))

    @property
    def given_files(self) -> list[Path]:
        """All configured model files."""
        return [path for files in self._files.values() for path in files.from_settings]

    def _describe(self, alias: str) -> ModelSpec:
        files, context_tokens = self._files[alias], self._settings.context_tokens
        info = describe_model(files.given, alias=alias, context_tokens=context_tokens, projector=files.projector)
        return ModelSpec(info, files.size_bytes)

    def set_options(self, tuning: Tuning, *, use_extra_bufts: bool) -> None:
        """Set the tuning for models that are loaded later."""
        settings = self._settings
        self._options = EngineOptions(
            context_tokens=settings.context_tokens,
            kv_tokens=settings.kv_tokens,
            max_sequences=min(MAX_SEQUENCES, settings.max_running + IDLE_SEQUENCES),
            batch_tokens=tuning.step_tokens,
            threads=tuning.threads,
            gpu_layers=settings.gpu_layers,
            flash_attention=tuning.flash_attention,
            use_extra_bufts=use_extra_bufts,
            key_type=settings.cache_type,
            value_type=settings.cache_type,
        )

    def disable_extra_bufts(self) -> None:
        """Disable the engine's extra buffer types for models that are loaded later."""
        self._options = replace(self._options, use_extra_bufts=False)

    def _check_digest(self, alias: str) -> None:
        if sha256 := self._settings.model_sha256.get(alias):
            check_digest(self._files[alias].given, alias=alias, sha256=sha256)

    def _file_of(self, alias: str) -> Path:
        if alias not in self._files:
            return converted_model()
        self._check_digest(alias)
        return self._files[alias].loaded

    async def load(self, spec: ModelSpec) -> ServedModel:
        """Load a model after checking the hash of its file again."""
        path = await asyncio.to_thread(self._file_of, spec.info.name)
        if embedder_kind(spec.info):
            options = EmbedderOptions.like(self._options)
            return ServedModel(spec.info, await load_pooled(path, spec.info, self._settings, options))
        storage = None
        if self._storage_of is not None:
            storage = self._storage_of(await asyncio.to_thread(digest_of, path))
        generation = await load_generation(
            path,
            spec.info,
            self._settings,
            self._options,
            self._workers,
            storage=storage,
            has_drafts=self._files[spec.info.name].draft is not None,
        )
        return ServedModel(spec.info, generation)
