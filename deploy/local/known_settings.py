"""Refuses misspelt settings and wrong values before any service starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic_settings import BaseSettings

from deploy.local.areas import GATEWAY, ConfigurationError, child_environment, read_areas, read_gateway
from pagantic_common.settings import known_names, read_settings
from pagantic_common.settings.names import AREAS, find_unknown
from pagantic_common.storage.settings_file import SettingsFileError, use_settings_file


def use_file() -> Path | None:
    """Set the variables of the settings file that are not set yet, and return its path; raises ConfigurationError."""
    try:
        file = use_settings_file(os.environ)
    except SettingsFileError as error:
        raise ConfigurationError(
            "\n".join(f"configuration error: {line}" for line in str(error).splitlines())
        ) from None
    return None if file is None else file.path


def check_names(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError, with a line for each unknown PAGANTIC_ variable."""
    known = frozenset(name for cls in _classes() for name in known_names(cls))
    _raise_for(find_unknown(environment, known, (*AREAS, GATEWAY)))


def check_values(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError, with a line for each variable whose value a service would refuse.

    Nothing is kept of what a start makes for its services, such as the keys of tenant tokens.
    """
    areas = read_areas(environment)
    read_gateway(environment)
    with TemporaryDirectory() as state, _environment(child_environment(areas, Path(state), environment)):
        problems = [problem for cls in _classes() for problem in read_settings(cls)[1]]
    _raise_for(list(dict.fromkeys(problems)))


def _raise_for(problems: list[str]) -> None:
    if problems:
        raise ConfigurationError("\n".join(f"configuration error: {problem}" for problem in problems))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have the process see other variables inside the block: settings are read from its environment alone."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _classes() -> tuple[type[BaseSettings], ...]:
    # Imported here: the other commands need no code of services.
    from gateway.http.settings import HttpSettings  # noqa: PLC0415
    from services.constraint.settings import ConstraintSettings  # noqa: PLC0415
    from services.context.settings import ContextSettings  # noqa: PLC0415
    from services.inference.settings import InferenceSettings  # noqa: PLC0415
    from services.orchestrator.settings import OrchestratorSettings  # noqa: PLC0415
    from services.rerank.settings import RerankSettings  # noqa: PLC0415
    from services.tools.settings import ToolsSettings  # noqa: PLC0415

    return (
        OrchestratorSettings,
        InferenceSettings,
        ConstraintSettings,
        ContextSettings,
        RerankSettings,
        ToolsSettings,
        HttpSettings,
    )
