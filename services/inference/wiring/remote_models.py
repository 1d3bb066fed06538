"""Connects the models of other engines and the routes, and builds the table of all models of the service.

No import of this module loads llama.cpp.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed
from pagantic_common.domain.messages import IMAGES, ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.remote.openai_engine import Endpoint, OpenAiEngine
from services.inference.adapters.remote.transport import ConnectionLimits
from services.inference.app.models import Models, ModelSpec, ServedModel
from services.inference.app.remote import RemoteEmbedding, RemoteGeneration, RemoteLimits
from services.inference.app.routing import Route, Use
from services.inference.app.workload import Workload
from services.inference.core import embedding
from services.inference.core.remote.requests import RemoteModel
from services.inference.settings import MIB, InferenceSettings, RemoteSettings, RouteSettings

REMOTE = "remote"
TEXT_CAPABILITIES = ("chat", "tools", "json_schema", REMOTE)
EMBEDDING_CAPABILITIES = (embedding.CAPABILITY, REMOTE)
ROUTE = "route"
_CHAT = "chat"


def describe_remote(alias: str, settings: RemoteSettings) -> ModelInfo:
    """Return the description of a remote model from its settings. Nothing is sent to the model's engine."""
    capabilities = TEXT_CAPABILITIES if settings.serves == "text" else EMBEDDING_CAPABILITIES
    if settings.takes_images:
        capabilities = (*capabilities, IMAGES)
    return ModelInfo(alias, settings.context_window, capabilities)


def open_remote(alias: str, settings: InferenceSettings) -> Workload:
    """Return the workload of a remote model. Its first use opens a connection.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if the key or the file of authorities is missing.
    """
    remote = settings.remotes[alias]
    info = describe_remote(alias, remote)
    model = RemoteModel(
        info, remote.model, remote.max_tokens_field, remote.extra_body, frozenset(remote.allowed_options)
    )
    connections = ConnectionLimits(
        remote.max_concurrent, remote.connect_timeout_s, remote.timeout_s, remote.max_answer_bytes
    )
    limits = RemoteLimits(remote.max_concurrent, remote.queue_capacity, remote.timeout_s)
    try:
        engine = OpenAiEngine(endpoint_of(alias, remote), connections)
    except OSError as error:
        raise _missing_secret(alias, f"ca_file {remote.ca_file!r} cannot be read ({error.strerror or error})") from None
    if remote.serves == "embeddings":
        return RemoteEmbedding(model, engine, limits, clock=SystemClock())
    return RemoteGeneration(model, engine, limits, clock=SystemClock(), new_seed=partial(secrets.randbits, 32))


def endpoint_of(alias: str, settings: RemoteSettings) -> Endpoint:
    """Return the address and key of an engine. Raises PreconditionFailed (CONFIG_NO_ENGINE) if the key is missing."""
    key, name = "", "api_key_env or api_key_file of the alias"
    if settings.api_key_env:
        name = f"the environment variable {settings.api_key_env}"
        key = os.environ.get(settings.api_key_env, "").strip()
    elif settings.api_key_file:
        name = f"the file {settings.api_key_file!r}"
        key = _first_line(alias, settings.api_key_file)
    if (settings.api_key_env or settings.api_key_file) and not _is_header_text(key):
        raise _missing_secret(alias, f"{name} must hold its key, printable ASCII characters")
    return Endpoint(alias, settings.url, key, name, settings.ca_file)


def _first_line(alias: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _missing_secret(alias, f"api_key_file {path!r} cannot be read ({type(error).__name__})") from None


def _is_header_text(key: str) -> bool:
    return bool(key) and key.isascii() and key.isprintable()


def _missing_secret(alias: str, problem: str) -> PreconditionFailed:
    return PreconditionFailed(f"remote model {alias!r}: {problem}", code=ErrorCode.CONFIG_NO_ENGINE)


class RemoteModels:
    """Connects the models of REMOTES and ROUTES.

    Args:
        settings: The settings of these models.
        local: The models that are decoded here.

    Attributes:
        specs: The specs of the remote models, then of the routes, each in the configured order.
    """

    def __init__(self, settings: InferenceSettings, local: Iterable[ModelInfo]) -> None:
        self._settings = settings
        models = {info.name: info for info in local}
        for alias in (*settings.remotes, *settings.routes):
            if alias in models:
                raise InvalidRequest(
                    f"alias {alias!r} of REMOTES or ROUTES is the alias of a local model: rename one of them"
                )
        for alias, remote in settings.remotes.items():
            endpoint_of(alias, remote)  # an invalid key or file fails the start of the service, not the first request
            models[alias] = describe_remote(alias, remote)
        routes = [describe_route(alias, route, models) for alias, route in settings.routes.items()]
        self.specs = [ModelSpec(models[alias], 0) for alias in settings.remotes]
        self.specs += [ModelSpec(info, 0) for info in routes]

    def has(self, alias: str) -> bool:
        """Return whether an alias is a remote model or a route."""
        return alias in self._settings.remotes or alias in self._settings.routes

    def connect(self, info: ModelInfo, use: Use) -> ServedModel:
        """Return a model that can serve requests. `use` opens the models of a route."""
        route = self._settings.routes.get(info.name)
        if route is None:
            return ServedModel(info, open_remote(info.name, self._settings), self._options_of(info.name))
        hedge_after_s = None
        if route.hedge_after_ms is not None:
            hedge_after_s = route.hedge_after_ms / 1000
        # Any model of the route may answer, so a request may use only the options that all models support.
        options = frozenset.intersection(*map(self._options_of, route.models))
        workload = Route(info.name, route.models, hedge_after_s=hedge_after_s, use=use, clock=SystemClock())
        return ServedModel(info, workload, options)

    def _options_of(self, alias: str) -> frozenset[str]:
        remote = self._settings.remotes.get(alias)
        return frozenset(remote.allowed_options) if remote is not None else frozenset()


def describe_route(alias: str, route: RouteSettings, models: Mapping[str, ModelInfo]) -> ModelInfo:
    """Return the description of a route: the capabilities that all its models share, and their smallest window.

    Raises InvalidRequest if a model is unknown, is another route, or does not accept conversations.
    """
    if len(set(route.models)) < len(route.models):
        raise InvalidRequest(f"route {alias!r} names a model twice")
    infos = [_model_of(alias, name, models) for name in route.models]
    shared = set(infos[0].capabilities).intersection(*(info.capabilities for info in infos)) - {REMOTE}
    capabilities = [capability for capability in infos[0].capabilities if capability in shared]
    return ModelInfo(alias, min(info.context_window for info in infos), (*capabilities, ROUTE))


def _model_of(route: str, name: str, models: Mapping[str, ModelInfo]) -> ModelInfo:
    info = models.get(name)
    if info is None:
        aliases = ", ".join(map(repr, models))
        raise InvalidRequest(f"route {route!r} names model {name!r}: a route may name {aliases}")
    if _CHAT not in info.capabilities:
        raise InvalidRequest(f"route {route!r} names model {name!r}, which takes no conversations")
    return info


class LocalModels(Protocol):
    """The models that are decoded here."""

    @property
    def specs(self) -> Sequence[ModelSpec]:
        """The specs of the configured models, in order."""

    @property
    def bundled(self) -> Sequence[ModelSpec]:
        """The spec of the bundled embedding model, if it is served."""

    async def load(self, spec: ModelSpec) -> ServedModel:
        """Load a model while the service runs."""


def make_models(settings: InferenceSettings, local: LocalModels) -> Models:
    """Return the table of all models, without loading any of them.

    Raises InvalidRequest if there are no models or the default model is unknown.
    """
    remote = RemoteModels(settings, [spec.info for spec in local.specs])
    specs = [*local.specs, *remote.specs, *local.bundled]
    if not specs:
        raise InvalidRequest("MODEL_PATH is none, and the embedding model is not installed: there is no model to serve")
    if settings.default_model:
        default = [spec for spec in specs if spec.info.name == settings.default_model]
        if not default:
            aliases = ", ".join(repr(spec.info.name) for spec in specs)
            raise InvalidRequest(f"DEFAULT_MODEL is {settings.default_model!r}: the models are {aliases}")
        specs = [*default, *(spec for spec in specs if spec not in default)]

    async def load(spec: ModelSpec) -> ServedModel:
        if remote.has(spec.info.name):
            return remote.connect(spec.info, models.use)
        return await local.load(spec)

    models = Models(
        specs,
        load,
        memory_limit_bytes=settings.memory_limit_mib * MIB,
        min_residence_s=settings.min_residence_s,
    )
    return models
