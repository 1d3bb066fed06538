"""Loads the models of the settings, with the engine options that hold at that time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pagantic_common.domain.errors import InvalidRequest
from services.inference.adapters.embedding_model import (
    ALIAS,
    SIZE_BYTES,
    converted_model,
    describe_embedding_model,
    is_installed,
)
from services.inference.adapters.llama_cpp_embedder import EmbedderOptions, embedder_kind
from services.inference.adapters.llama_cpp_engine import MAX_SEQUENCES, EngineOptions
from services.inference.adapters.llguidance_constraints import Workers
from services.inference.adapters.model_file import check_digest, describe_model, digest_of, draft_model_bytes
from services.inference.app.models import ModelSpec, ServedModel
from services.inference.app.storing.submission import ModelStorage
from services.inference.core.tuning import Tuning
from services.inference.settings import BUNDLED, InferenceSettings
from services.inference.wiring.pooling import load_pooled
from services.inference.wiring.text.text_generation import load_generation

IDLE_SEQUENCES = 96  # ids for finished sequences whose tokens may be shared


class ModelLoader:
    """Loads models by their specs.

    Args:
        settings: The models.
        own: The file of the model that is loaded at the start; None for none.
        workers: Try constraints.
        storage_of: Returns the store of a model's prefixes, by what tells its files from others; None for none.

    Attributes:
        specs: The models of MODEL_PATH and MODELS, in this order.
        bundled: The bundled embedding model, where it is served.
    """

    def __init__(
        self,
        settings: InferenceSettings,
        own: Path | None,
        workers: Workers,
        storage_of: Callable[[str], ModelStorage] | None = None,
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._storage_of = storage_of
        self._options = EngineOptions()
        self._paths: dict[str, Path] = {}
        own_alias = ""
        if own is not None:
            own_alias = settings.model_name or own.stem
            self._paths[own_alias] = own
        self._paths |= {alias: Path(path) for alias, path in settings.models.items()}
        self._check_digests()
        self._drafted = own_alias if settings.draft_model_path else ""
        self.specs = [self._spec(alias, path) for alias, path in self._paths.items()]
        self.bundled: list[ModelSpec] = []
        taken = {*self._paths, *settings.remotes, *settings.routes}
        if settings.embedding_model == BUNDLED and ALIAS not in taken and is_installed():
            info = describe_embedding_model(context_tokens=settings.context_tokens)
            self.bundled.append(ModelSpec(info, SIZE_BYTES))

    def set_options(self, tuning: Tuning, *, use_extra_bufts: bool) -> None:
        """Load models with this tuning from now on."""
        settings = self._settings
        self._options = EngineOptions(
            context_tokens=settings.context_tokens,
            kv_tokens=settings.kv_tokens or 2 * settings.context_tokens,
            max_sequences=min(MAX_SEQUENCES, settings.max_running + IDLE_SEQUENCES),
            batch_tokens=tuning.step_tokens,
            threads=tuning.threads,
            gpu_layers=settings.gpu_layers,
            flash_attention=tuning.flash_attention,
            use_extra_bufts=use_extra_bufts,
        )

    def disable_extra_bufts(self) -> None:
        """Load models without the engine's extra buffer types from now on."""
        self._options = replace(self._options, use_extra_bufts=False)

    def _check_digests(self) -> None:
        if unknown := sorted(set(self._settings.model_sha256) - set(self._paths)):
            known = ", ".join(map(repr, self._paths))
            raise InvalidRequest(f"MODEL_SHA256 names {', '.join(map(repr, unknown))}: the models are {known}")
        for alias in self._paths:
            self._check_digest(alias)

    def _spec(self, alias: str, path: Path) -> ModelSpec:
        info = describe_model(path, alias=alias, context_tokens=self._settings.context_tokens)
        memory_bytes = path.stat().st_size
        if alias == self._drafted:
            memory_bytes += draft_model_bytes(Path(self._settings.draft_model_path))
        return ModelSpec(info, memory_bytes)

    def _check_digest(self, alias: str) -> None:
        if sha256 := self._settings.model_sha256.get(alias):
            check_digest(self._paths[alias], alias=alias, sha256=sha256)

    def _file_of(self, alias: str) -> Path:
        if alias not in self._paths:
            return converted_model()
        self._check_digest(alias)
        return self._paths[alias]

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
            has_drafts=spec.info.name == self._drafted,
        )
        return ServedModel(spec.info, generation)
