"""The models that are not decoded here: those of other engines, and routes over models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.app.models import ModelSpec, ServedModel
from services.inference.app.remote.routing import Route, Use
from services.inference.settings import InferenceSettings, RouteSettings
from services.inference.wiring.remote import REMOTE, describe_remote, endpoint_of, open_remote

ROUTE = "route"
_CHAT = "chat"


class Elsewhere:
    """Connects the models of REMOTES and ROUTES.

    Args:
        settings: These models.
        local: The models that are decoded here.

    Attributes:
        specs: Their descriptions, in the order of the settings.
    """

    def __init__(self, settings: InferenceSettings, local: Iterable[ModelInfo]) -> None:
        self._settings = settings
        models = {info.name: info for info in local}
        for alias in (*settings.remotes, *settings.routes):
            if alias in models:
                raise InvalidRequest(
                    f"alias {alias!r} of REMOTES or ROUTES is that of a model here: rename one of them"
                )
        for alias, remote in settings.remotes.items():
            endpoint_of(alias, remote)  # a missing key ends the start, and not the first request
            models[alias] = describe_remote(alias, remote)
        routes = [describe_route(alias, route, models) for alias, route in settings.routes.items()]
        self.specs = [ModelSpec(models[alias], 0) for alias in settings.remotes]
        self.specs += [ModelSpec(info, 0) for info in routes]

    def has(self, alias: str) -> bool:
        """Tell whether a model is one of these."""
        return alias in self._settings.remotes or alias in self._settings.routes

    def connect(self, info: ModelInfo, use: Use) -> ServedModel:
        """Return a model that is ready to work; `use` gives a route its models."""
        route = self._settings.routes.get(info.name)
        if route is None:
            return ServedModel(info, open_remote(info.name, self._settings))
        hedge_after_s = None
        if route.hedge_after_ms is not None:
            hedge_after_s = route.hedge_after_ms / 1000
        return ServedModel(
            info, Route(info.name, route.models, hedge_after_s=hedge_after_s, use=use, clock=SystemClock())
        )


def describe_route(alias: str, route: RouteSettings, models: Mapping[str, ModelInfo]) -> ModelInfo:
    """Return what every model of a route can do, and the smallest of their windows.

    Raises InvalidRequest for a model that is not there, that is another route, or that takes no conversations.
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
        known = ", ".join(map(repr, models))
        raise InvalidRequest(f"route {route!r} names model {name!r}: the models that a route may name are {known}")
    if _CHAT not in info.capabilities:
        raise InvalidRequest(f"route {route!r} names model {name!r}, which takes no conversations")
    return info
