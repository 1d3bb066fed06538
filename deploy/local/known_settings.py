"""Rejects misspelt settings and invalid values before any service starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic_settings import BaseSettings

from deploy.local.areas import (
    ConfigurationError,
    child_environment,
    door_settings,
    read_areas,
    read_gateway,
    read_start_limit,
)
from pagantic_common.models.resolving import NO_MODEL
from pagantic_common.settings import known_names, read_settings, variable_of
from pagantic_common.storage.settings_file import SettingsFileError, origin_of, use_settings_file
from pagantic_common.storage.settings_names import AREAS, DOORS, find_unknown

# These settings name files although their names do not show it.
_FILES = (
    "PAGANTIC_INFERENCE_MODEL_PATH",
    "PAGANTIC_INFERENCE_DRAFT_MODEL_PATH",
    "PAGANTIC_INFERENCE_PROJECTOR_PATH",
    "PAGANTIC_TOOLS_MCP_SERVERS",
    "PAGANTIC_TOOLS_OPENAPI",
)
_MODELS, _REMOTES = "PAGANTIC_INFERENCE_MODELS", "PAGANTIC_INFERENCE_REMOTES"


def use_file() -> Path | None:
    """Set the missing variables from the settings file, and return its path. Raises ConfigurationError."""
    try:
        file = use_settings_file(os.environ)
    except SettingsFileError as error:
        raise ConfigurationError(
            "\n".join(f"configuration error: {line}" for line in str(error).splitlines())
        ) from None
    return None if file is None else file.path


def check_names(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError with a line for each unknown PAGANTIC_ variable."""
    names = frozenset(name for cls in (*_services(), *_others()) for name in known_names(cls))
    _raise_for(find_unknown(environment, names, (*AREAS, *DOORS)))


def check_values(environment: Mapping[str, str], *, for_all: bool = False) -> None:
    """Raise ConfigurationError with a line for each variable with an invalid value or a missing file.

    A start checks the programs that it starts. `for_all` also checks the settings of the other programs. Files that a
    start would create for its services, such as the keys of tenant tokens, are not kept.
    """
    areas, gateway = read_areas(environment), read_gateway(environment)
    read_start_limit(environment)
    others = _others() if for_all else [door_settings()[door.name] for door in gateway]
    with TemporaryDirectory() as state, _environment(child_environment(areas, Path(state), environment)):
        problems = [problem for cls in (*_services(), *others) for problem in _problems_of(cls)]
    _raise_for(list(dict.fromkeys(problems)))


def _problems_of(cls: type[BaseSettings]) -> list[str]:
    settings, problems = read_settings(cls)
    if settings is None:
        return problems
    prefix = cls.model_config.get("env_prefix", "")
    for field in cls.model_fields:
        files = _named_files(f"{prefix}{field}".upper(), getattr(settings, field))
        missing = [path for path in files if _is_missing(path)]
        variable = variable_of(prefix, field.upper())
        problems += [f"{origin_of(variable)}{variable}: there is no file {path!r}" for path in missing]
    return problems


def _named_files(variable: str, value: Any) -> list[str]:
    """Return the files that a setting names and that a service needs to start."""
    if variable == _MODELS:
        return list(value.values())
    if variable == _REMOTES:
        return [path for remote in value.values() for path in (remote.api_key_file, remote.ca_file) if path]
    if value and value != NO_MODEL and (variable.endswith("_FILE") or variable in _FILES):
        return [str(value)]
    return []


def _is_missing(path: str) -> bool:
    try:
        return not Path(path).is_file()
    except OSError:
        return False  # The folder cannot be searched. The service itself reports the reason.


def _raise_for(problems: list[str]) -> None:
    if problems:
        raise ConfigurationError("\n".join(f"configuration error: {problem}" for problem in problems))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment of the process inside the block, because settings are read only from there."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _services() -> tuple[type[BaseSettings], ...]:
    # Imported here, because the other commands need no code of the services.
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
    """Return the settings of programs other than the services."""
    from pagantic_common.models.settings import ModelSettings  # noqa: PLC0415

    return *door_settings().values(), ModelSettings
