"""Puts the models of this service together: those that it decodes, those of other engines, and routes."""

from __future__ import annotations

from pagantic_common.domain.errors import InvalidRequest
from services.inference.app.models import Models, ModelSpec, ServedModel
from services.inference.settings import InferenceSettings
from services.inference.wiring.elsewhere import Elsewhere
from services.inference.wiring.model_loading import ModelLoader

MIB = 1024 * 1024


def make_models(settings: InferenceSettings, loader: ModelLoader) -> Models:
    """Return all models, none of which is loaded; raises InvalidRequest for an unknown default model, or none."""
    elsewhere = Elsewhere(settings, [spec.info for spec in loader.specs])
    specs = [*loader.specs, *elsewhere.specs, *loader.bundled]
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
        return await loader.load(spec)

    models = Models(
        specs,
        load,
        memory_limit_bytes=settings.memory_limit_mib * MIB,
        min_residence_s=settings.min_residence_s,
    )
    return models
