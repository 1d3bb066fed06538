"""Finds the tools of a deployment: in the modules that the settings name, and among the installed packages."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pagantic_common.domain.errors import InvalidRequest, PaganticError
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.tools import FunctionTool
from services.tools.adapters.function_tool import FunctionToolAdapter
from services.tools.ports import Tool

ENTRY_POINT_GROUP = "pagantic.tools"

log = get_logger(__name__)


def load_modules(names: Iterable[str]) -> list[Tool]:
    """Return the tools of modules, each given as `package.module` or as the path of a file.

    Raises InvalidRequest (CONFIG_INVALID) for a module that cannot be imported or has no tool.
    """
    return [tool for name in names for tool in _tools_of(name)]


def load_installed() -> list[Tool]:
    """Return the tools of installed packages; one that cannot be loaded is logged and left out."""
    found: list[Tool] = []
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        try:
            found += _tools_of_entry(entry)
        except PaganticError as error:
            log.warning("an installed package's tools are left out", entry_point=entry.name, reason=str(error))
    return found


def _tools_of(name: str) -> Iterator[Tool]:
    where = f"MODULES names {name!r}"
    try:
        module = _import(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
        raise InvalidRequest(f"{where}, which cannot be imported: {_reason_of(error)}") from None
    tools = _functions_in(vars(module).values())
    if not tools:
        raise InvalidRequest(f"{where}, which has no tool: put @tool before a function")
    return iter(tools)


def _tools_of_entry(entry: EntryPoint) -> list[Tool]:
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may raise anything
        raise InvalidRequest(f"{entry.value!r} cannot be imported: {_reason_of(error)}") from None
    tools = _functions_in(vars(loaded).values() if isinstance(loaded, ModuleType) else [loaded])
    if not tools:
        raise InvalidRequest(f"{entry.value!r} has no tool")
    return tools


def _functions_in(values: Iterable[Any]) -> list[Tool]:
    """Return the tools among values, each once."""
    functions = {id(value): value for value in values if isinstance(value, FunctionTool)}
    return [FunctionToolAdapter(function) for function in functions.values()]


def _import(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).expanduser().resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {name!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # its annotations are looked up there
    spec.loader.exec_module(module)
    return module


def _reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
