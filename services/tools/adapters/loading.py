"""Loads the tools of a deployment from configured modules and installed packages."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from pagantic_common.domain.defaults import expand_home
from pagantic_common.domain.errors import InvalidRequest, PaganticError
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.tools import FunctionTool, ToolHook
from services.tools.adapters.function_tool import FunctionToolAdapter, Machine
from services.tools.ports import Tool

ENTRY_POINT_GROUP = "pagantic.tools"

Function = FunctionTool[..., Any]

log = get_logger(__name__)


def load_tools(modules: Iterable[str], *, is_installed_included: bool) -> list[Tool]:
    """Return the tools of installed packages and of modules, given as `package.module` or as file paths.

    A tool that several modules or packages contain counts once. An installed package that cannot be loaded is logged
    and left out. Raises InvalidRequest (CONFIG_INVALID) if a module cannot be imported or has no tool.
    """
    functions = [function for number, name in enumerate(modules) for function in _functions_of(name, number)]
    if is_installed_included:
        functions += _installed_functions()
    machine = Machine(SystemClock())
    distinct = {id(function): function for function in functions}.values()
    return [FunctionToolAdapter(function, machine) for function in distinct]


def load_hooks(names: Iterable[str]) -> list[ToolHook]:
    """Return the hooks with names `package.module:object` or `path/of/file:object`.

    A class is called without arguments. Raises InvalidRequest (CONFIG_INVALID) if an object is not a hook.
    """
    return [_hook_of(name, number) for number, name in enumerate(names)]


def _hook_of(name: str, number: int) -> ToolHook:
    where = f"HOOKS names {name!r}"
    module_name, _, attribute = name.rpartition(":")
    if not module_name:
        raise InvalidRequest(f"{where}: write package.module:object, or the path of a .py file before the colon")
    try:
        target = getattr(_import(module_name, f"hooks_{number}"), attribute)
        hook = target() if isinstance(target, type) else target
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
        raise InvalidRequest(f"{where}, which cannot be imported: {_reason_of(error)}") from None
    if not isinstance(hook, ToolHook):
        raise InvalidRequest(f"{where}, which is not a ToolHook: derive it from pagantic_common.tools.ToolHook")
    return hook


def _functions_of(name: str, number: int) -> list[Function]:
    where = f"MODULES names {name!r}"
    try:
        module = _import(name, str(number))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
        raise InvalidRequest(f"{where}, which cannot be imported: {_reason_of(error)}") from None
    functions = _functions_in(vars(module).values())
    if not functions:
        raise InvalidRequest(f"{where}, which has no tool: put @tool before a function")
    return functions


def _installed_functions() -> Iterator[Function]:
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        try:
            yield from _functions_of_entry(entry)
        except PaganticError as error:
            log.warning("an installed package's tools are left out", entry_point=entry.name, reason=str(error))


def _functions_of_entry(entry: EntryPoint) -> list[Function]:
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may raise anything
        raise InvalidRequest(f"{entry.value!r} cannot be imported: {_reason_of(error)}") from None
    functions = _functions_in(vars(loaded).values() if isinstance(loaded, ModuleType) else [loaded])
    if not functions:
        raise InvalidRequest(f"{entry.value!r} has no tool")
    return functions


def _functions_in(values: Iterable[Any]) -> list[Function]:
    return [value for value in values if isinstance(value, FunctionTool)]


def _import(name: str, number: str) -> ModuleType:
    """Import a module by name, or import a file under a unique module name."""
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{error}: install its package, name its folder in PYTHONPATH, or write the path of a .py file; the "
                "current folder is not searched"
            ) from None
    path = expand_home(name).resolve()
    own_name = f"pagantic_tools_{number}_{path.stem}"
    spec = importlib.util.spec_from_file_location(own_name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {name!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own_name] = module  # typing resolves the module's annotations in sys.modules
    spec.loader.exec_module(module)
    return module


def _reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
