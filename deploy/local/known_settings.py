"""Refuses misspelt settings before any service starts."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.local.areas import ConfigurationError
from pagantic_common.settings import ServiceSettings, known_names
from pagantic_common.settings.names import AREAS, find_unknown


def check_names(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError, with a line for each unknown PAGANTIC_ variable."""
    # Imported here: the other commands need no code of services.
    from services.constraint.settings import ConstraintSettings  # noqa: PLC0415
    from services.context.settings import ContextSettings  # noqa: PLC0415
    from services.inference.settings import InferenceSettings  # noqa: PLC0415
    from services.orchestrator.settings import OrchestratorSettings  # noqa: PLC0415
    from services.rerank.settings import RerankSettings  # noqa: PLC0415
    from services.tools.settings import ToolsSettings  # noqa: PLC0415

    classes: tuple[type[ServiceSettings], ...] = (
        OrchestratorSettings,
        InferenceSettings,
        ConstraintSettings,
        ContextSettings,
        RerankSettings,
        ToolsSettings,
    )
    known = frozenset(name for cls in classes for name in known_names(cls))
    if problems := find_unknown(environment, known, AREAS):
        raise ConfigurationError("\n".join(f"configuration error: {problem}" for problem in problems))
