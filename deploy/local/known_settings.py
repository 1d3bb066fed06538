"""Refuses misspelt settings and wrong values before any service starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic_settings import BaseSettings

from deploy.local.areas import (
    ConfigurationError,
    child_environment,
    door_settings,
    read_areas,
    read_gateway,
    read_start_limit,
)
from pagantic_common.settings import known_names, read_settings
from pagantic_common.settings.names import AREAS, DOORS, find_unknown
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
    known = frozenset(name for cls in (*_services(), *_others()) for name in known_names(cls))
    _raise_for(find_unknown(environment, known, (*AREAS, *DOORS)))


def check_values(environment: Mapping[str, str], *, for_all: bool = False) -> None:
    """Raise ConfigurationError, with a line for each variable whose value a service would refuse.

    A start checks what it starts; `for_all` checks the settings of the other programs too. Nothing is kept of what a
    start makes for its services, such as the keys of tenant tokens.
    """
    areas, gateway = read_areas(environment), read_gateway(environment)
    read_start_limit(environment)
    others = _others() if for_all else [door_settings()[door.name] for door in gateway]
    with TemporaryDirectory() as state, _environment(child_environment(areas, Path(state), environment)):
        problems = [problem for cls in (*_services(), *others) for problem in read_settings(cls)[1]]
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


def _services() -> tuple[type[BaseSettings], ...]:
    # Imported here: the other commands need no code of services.
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
    )


def _others() -> tuple[type[BaseSettings], ...]:
    """Return the settings of programs beside the services."""
    from pagantic_common.models.settings import ModelSettings  # noqa: PLC0415

    return *door_settings().values(), ModelSettings
