"""Puts the models of this service together: those that it decodes, those of other engines, and routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pagantic_common.domain.errors import InvalidRequest
from services.inference.app.models import Models, ModelSpec, ServedModel
from services.inference.settings import InferenceSettings
from services.inference.wiring.elsewhere import Elsewhere

MIB = 1024 * 1024


class LocalModels(Protocol):
    """The models that are decoded here: those of the settings, and the bundled one."""

    @property
    def specs(self) -> Sequence[ModelSpec]:
        """The models of the settings, in their order."""

    @property
    def bundled(self) -> Sequence[ModelSpec]:
        """The bundled embedding model, where it is served."""

    async def load(self, spec: ModelSpec) -> ServedModel:
        """Load one of them."""


def make_models(settings: InferenceSettings, local: LocalModels) -> Models:
    """Return all models, none of which is loaded; raises InvalidRequest for an unknown default model, or none."""
    elsewhere = Elsewhere(settings, [spec.info for spec in local.specs])
    specs = [*local.specs, *elsewhere.specs, *local.bundled]
    if not specs:
        raise InvalidRequest("MODEL_PATH is none, and the embedding model is not installed: there is no model to serve")
    if settings.default_model:
        default = [spec for spec in specs if spec.info.name == settings.default_model]
        if not default:
            known = ", ".join(repr(spec.info.name) for spec in specs)
            raise InvalidRequest(f"DEFAULT_MODEL is {settings.default_model!r}: the models are {known}")
        specs = [*default, *(spec for spec in specs if spec not in default)]

    async def load(spec: ModelSpec) -> ServedModel:
        if elsewhere.has(spec.info.name):
            return elsewhere.connect(spec.info, models.use)
        return await local.load(spec)

    models = Models(
        specs,
        load,
        memory_limit_bytes=settings.memory_limit_mib * MIB,
        min_residence_s=settings.min_residence_s,
    )
    return models
