"""Loads the models of the settings, with the engine options that hold at that time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from services.inference.adapters.conversion.embedding_model import (
    ALIAS,
    SIZE_BYTES,
    converted_model,
    describe_embedding_model,
    is_installed,
)
from services.inference.adapters.llama.cache import MAX_SEQUENCES, EngineOptions
from services.inference.adapters.llama.embedder import EmbedderOptions, embedder_kind
from services.inference.adapters.model_file import check_digest, describe_model, digest_of
from services.inference.app.models import ModelSpec, ServedModel
from services.inference.app.storing.submission import ModelStorage
from services.inference.core.tuning.choosing import Tuning
from services.inference.settings import BUNDLED, InferenceSettings
from services.inference.wiring.model_files import files_of
from services.inference.wiring.workers import AllWorkers
from services.inference.wiring.workloads.pooling import load_pooled
from services.inference.wiring.workloads.text_generation import load_generation

IDLE_SEQUENCES = 96  # ids for finished sequences whose tokens may be shared


class ModelLoader:
    """Loads models by their specs.

    Args:
        settings: The models.
        own: The file of the model that is loaded at the start; None for none.
        workers: Try constraints, and decode images.
        storage_of: Returns the store of a model's prefixes, by what tells its files from others; None for none.
        convert: Returns the file to load for a text model of `own`, whose hash was checked; None loads `own`.

    Attributes:
        specs: The models of MODEL_PATH and MODELS, in this order.
        own_file: The file that the engine loads for the model of MODEL_PATH; None without one.
        bundled: The bundled embedding model, where it is served.
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
            self._load_own_from(convert(own))
        self.bundled: list[ModelSpec] = []
        taken = {*self._files, *settings.remotes, *settings.routes}
        if settings.embedding_model == BUNDLED and ALIAS not in taken and is_installed():
            info = describe_embedding_model(context_tokens=settings.context_tokens)
            self.bundled.append(ModelSpec(info, SIZE_BYTES))

    @property
    def given_files(self) -> list[Path]:
        """The files of all models that the settings name."""
        return [path for files in self._files.values() for path in files.from_settings]

    def _describe(self, alias: str) -> ModelSpec:
        files, context_tokens = self._files[alias], self._settings.context_tokens
        info = describe_model(files.given, alias=alias, context_tokens=context_tokens, projector=files.projector)
        return ModelSpec(info, files.size_bytes)

    def _load_own_from(self, file: Path) -> None:
        """Let the engine load another file for the first model."""
        alias = self.specs[0].info.name
        self.own_file = file
        self._files[alias] = replace(self._files[alias], loaded=file)
        self.specs[0] = replace(self.specs[0], memory_bytes=self._files[alias].size_bytes)

    def set_options(self, tuning: Tuning, *, use_extra_bufts: bool) -> None:
        """Load models with this tuning from now on."""
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
        """Load models without the engine's extra buffer types from now on."""
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
        """Load a model; its file must be the expected one still."""
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
