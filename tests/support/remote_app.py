"""The inference service over remote engines, routes and scripted local models, as its settings name them."""

from services.inference.app.models import Models, ModelSpec
from services.inference.settings import InferenceSettings
from services.inference.wiring.remote_models import RemoteModels
from tests.support.inference_app import served


def remote(url, **fields):
    """Return the settings of a remote model."""
    return {"url": url, "model": "org/Big", "context_window": 4096, **fields}


def models_of(remotes, routes=None, local=(), **fields):
    """Return models: remote ones, routes, and local generations of scripted engines."""
    settings = InferenceSettings(remotes=remotes, routes=routes or {}, **fields)
    generations = {generation.engine.model.name: generation for generation in local}
    infos = [generation.engine.model for generation in generations.values()]
    remote = RemoteModels(settings, infos)

    async def load(spec):
        if remote.has(spec.info.name):
            return remote.connect(spec.info, models.use)
        return await served(generations[spec.info.name])

    specs = [*remote.specs, *(ModelSpec(info, 0) for info in infos)]
    specs.sort(key=lambda spec: spec.info.name != settings.default_model)
    models = Models(specs, load)
    return models
